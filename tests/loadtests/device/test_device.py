"""`penstock bench device` from end to end on the CPU, and its report."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from loadtests.device.__main__ import PARTS, contained
from loadtests.device.finding import DeviceReport, Finding, Section
from scheduler.engine.mlx.device import device
from tests.loadtests.device.shorter import ANSWER_TOKENS
from tests.repo.tree import ROOT

pytestmark = pytest.mark.timeout(600)  # A minute beside other tests.


@pytest.fixture(scope="module")
def quick_run(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """The folder of a quick run, and what its processes printed."""
    out = tmp_path_factory.mktemp("device")
    program = [sys.executable, "-c", _COMMAND, "--quick", "--minutes", "9", "--out", str(out)]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(program, capture_output=True, text=True, env=environment, cwd=ROOT)
    assert done.returncode == 0, done.stdout + done.stderr
    return out, done.stdout


_COMMAND = """
from loadtests.device import commands
commands.MODULE = "tests.loadtests.device.shorter"
commands.device()
"""


def _findings(data: dict[str, Any], title: str) -> dict[str, dict[str, Any]]:
    (section,) = (section for section in data["sections"] if section["title"] == title)
    return {finding["name"]: finding for finding in section["findings"]}


def test_every_branch_is_right_on_this_machine(quick_run: tuple[Path, str]) -> None:
    """All tokens are the best ones in float32, and seeded answers do not depend on neighbours. Here the
    device is the CPU: of the operations it is shown that all of them run."""
    data = json.loads((quick_run[0] / "device.json").read_text())
    branches = _findings(data, "Branches")
    assert len(branches) == 2 * 3, "two dtypes, and the branches of this device, a GPU's and x86's"
    for name, finding in branches.items():
        assert finding["judgement"] == "right"
        figures = finding["figures"]
        if "float32" in name:
            assert figures["best_tokens"] == figures["positions"] == 4 * ANSWER_TOKENS
            assert figures["seeded_answers_as_alone"] == figures["seeded_answers"] == 4
    operations = _findings(data, "Operations")
    assert {one["judgement"] for one in operations.values()} == {"right", "measured"}
    for name in (
        "attention, 1 queries, head 64, mask array, bfloat16",
        "attention over a shared run, float32",
    ):
        assert 0 <= operations[name]["figures"]["host_ms"] <= operations[name]["figures"]["again_ms"]


def test_steps_and_memory_have_figures(quick_run: tuple[Path, str]) -> None:
    """No test can say what the figures should be; those that the guard relies on are held to bounds."""
    data = json.loads((quick_run[0] / "device.json").read_text())
    steps = _findings(data, "Steps")
    for rows in (1, 8):
        figures = steps[f"decode steps of {rows} rows"]["figures"]
        assert min(figures[name] for name in ("step_ms", "bare_ms", "host_ms", "tokens_per_second")) > 0
    shared = steps["decode steps of 8 rows behind 256 shared tokens"]["figures"]
    alone = steps["decode steps of 8 rows"]["figures"]
    assert shared["rows_MB"] < 2 * alone["rows_MB"], "a shared prefix is in memory once"
    made = _findings(data, "A model of 8B's shape, bfloat16")
    assert made["decode steps of 2 rows"]["figures"]["bare_ms"] > 0
    assert steps["a chunk of 256 tokens"]["figures"]["tokens_per_second"] > 0
    death = _findings(data, "Server")["two deaths under load"]
    assert (death["judgement"], death["figures"]["engines_that_died"]) == ("right", 2)
    found = _findings(data, "Memory")
    prompt = found["memory of a prompt"]
    assert (prompt["judgement"], prompt["figures"]["tokens"]) == ("right", 896)
    assert prompt["figures"]["expected_bytes_per_token"] <= prompt["figures"]["bytes_per_token"]
    assert found["steps and a row that leaves"]["judgement"] == "right"


def test_the_report_can_be_sent_in(quick_run: tuple[Path, str]) -> None:
    """It says what ran on what, and names no folder, user or host."""
    out, printed = quick_run
    text = (out / "device.md").read_text()
    assert text.startswith(f"# Penstock on {device().name}\n")
    for title in (part.title for part in PARTS.values()):
        assert f"## {title}\n" in text
        assert f"{title}:\n" in printed
    for private in (str(ROOT), str(Path.home()) + "/", os.uname().nodename):
        assert private not in text + (out / "device.json").read_text()


@pytest.mark.parametrize(
    ("raised", "detail"),
    [
        (FileNotFoundError(2, "No such file", "/Users/al b/x's"), "[Errno 2] No such file: ..."),
        (RuntimeError("dlopen(/home/al b/m.so): no image"), "dlopen(...: no image"),
        (RuntimeError("at /home/al b/k.cu\nmlx|jit.cpp:12: 1/s"), "at ...\nmlx|jit.cpp:12: 1/s"),
    ],
)
def test_what_raises_is_a_finding_and_names_no_folder(raised: Exception, detail: str) -> None:
    """A device that we have never run on may raise anything; the report names it first."""

    def findings() -> Iterator[Finding]:
        yield Finding("a sum", "right", {"error": 0.25})
        raise raised

    _, wrong = found = tuple(contained("steps", findings()))
    assert wrong == Finding("steps", "raised", detail=f"{type(raised).__name__}: {detail}")
    whole = DeviceReport({"device": "M9"}, "tiny", True, 3.2, (Section("Operations", "All right.", found),))
    assert list(whole.complaints()) == [f"Operations: steps: {wrong.detail}"]
    shown = wrong.detail.replace("\n", " ").replace("|", "/")
    lines = {"# Penstock on M9", "| a sum | right | 0.25 |", f"| steps | raised: {shown} |"}
    assert lines <= {*"\n".join(whole.lines()).splitlines()}
