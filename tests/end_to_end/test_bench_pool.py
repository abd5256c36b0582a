"""The benches of the pool from the command line. How fast this machine is decides nothing here."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.end_to_end.test_bench import bench


def measured(out: Path, name: str) -> Any:
    assert "<table>" in (out / f"{name}.html").read_text()
    return json.loads((out / f"{name}.json").read_text())["measured"]


@pytest.mark.timeout(120)
def test_scale_measures_each_number_of_engines(tmp_path: Path) -> None:
    """Whole servers, in their order, and then the server alone; no answer fails."""
    sizes = ("--engines", "1,2", "--simulated", "3", "--slots", "2")
    done = bench("scale", *sizes, "--step-ms", "20", "--seconds", "0.5", "--out", str(tmp_path))
    assert done.returncode in (0, 1), done.stderr
    found = measured(tmp_path, "scale")
    assert [one["engines"] for one in found["servers"]] == [1, 2]
    assert [one["engines"] for one in found["front"]] == [3]
    for one in found["servers"]:
        assert one["failures"] == []
        assert one["tokens"] > 0
        assert 0 < one["cpu_seconds"] < one["seconds"]
    assert "2 engines" in done.stdout


@pytest.mark.timeout(120)
def test_affinity_passes_and_says_what_each_placement_found(tmp_path: Path) -> None:
    """On the virtual clock: the verdict is the same on every machine."""
    done = bench("affinity", "--engines", "2", "--sessions", "6", "--turns", "4", "--out", str(tmp_path))
    assert done.returncode == 0, done.stdout + done.stderr
    found = measured(tmp_path, "affinity")
    assert [one["engines"] for one in found] == [1, 2, 2, 2]
    assert "least loaded" in done.stdout


def test_a_wrong_number_of_engines_is_named(tmp_path: Path) -> None:
    """Before any server is started."""
    done = bench("scale", "--engines", "1,none", "--out", str(tmp_path))
    assert (done.returncode, "1,none" in done.stderr) == (2, True)
