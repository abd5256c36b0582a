"""`penstock bench dev step` from end to end: a real server, and a bare BatchGenerator."""

from __future__ import annotations

import os
import re
import subprocess
import sys

import pytest

from loadtests.step.commands import ENGINE_PARTS, SERVER_PARTS
from scheduler.models.random_qwen3 import TINY, write_model
from tests.repo.tree import ROOT

pytestmark = pytest.mark.timeout(600)  # A quarter of a minute of processor time, beside other tests.


@pytest.fixture(scope="module")
def tables(tmp_path_factory: pytest.TempPathFactory) -> dict[int, dict[str, list[float]]]:
    """The figures of each line by its name, for each number of rows. A part of both processes is there
    twice: the server's stands."""
    model = tmp_path_factory.mktemp("models") / "tiny"
    write_model(TINY, model)
    options = ("--rows", "1", "--rows", "2", "--model", str(model), "--steps", "8")
    done = subprocess.run(
        [sys.executable, "-m", "loadtests", "dev", "step", *options],
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        cwd=ROOT,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    found: dict[int, dict[str, list[float]]] = {}
    for line in done.stdout.splitlines():
        if opening := re.match(r"(\d+) rows?, ", line):
            found[int(opening[1])] = {}
        elif figures := re.match(r"  (\S.*?)((?: +[\d.]+)+)$", line):
            list(found.values())[-1][figures[1]] = [float(one) for one in figures[2].split()]
    return found


def test_each_part_has_times_and_counts_that_do_not_depend_on_the_machine(
    tables: dict[int, dict[str, list[float]]],
) -> None:
    """No test can say what they should be."""
    assert list(tables) == [1, 2]
    for table in tables.values():
        assert {*ENGINE_PARTS, *SERVER_PARTS} <= table.keys()
        assert len(table["whole step"]) == 6, "the engine beside the bare batch: median, p99 and CPU"
        assert min(table["whole step"]) > 0
        # A step of the engine gives the device no more operations than a bare batch does, in one graph.
        engine, bare = table["operations"]
        assert 100 < engine <= bare
        assert table["evaluations"][0] == 1
        assert len(table["Python calls"]) == 3, "the engine, the bare batch, the server"
        assert min(table["Python calls"]) > 0
