"""The gate chooses files by what they import, and faults can be planted."""

from __future__ import annotations

import pytest

from tests.gate import ON_ONE_SERVER, SEAMS, is_fast, is_in_gate
from tests.planted import FAULTS, Fault, planted
from tests.repo.tree import ROOT

TESTS = ROOT / "tests"


@pytest.mark.parametrize(
    ("file", "fast"),
    [
        ("scheduler/intake/test_fair_queue.py", True),
        ("failures/test_resume.py", True),
        ("end_to_end/test_lifetime.py", False),  # subprocess
        ("end_to_end/test_tool_loops.py", False),  # through end_to_end/serving.py
        ("scheduler/engine/mlx/zoo/test_meetings.py", False),
        ("scheduler/processes/test_process.py", False),  # through real_engine.py
    ],
)
def test_files_without_processes_and_without_mlx_are_fast(file: str, fast: bool) -> None:
    assert (TESTS / file).exists()
    assert is_fast(TESTS / file) is fast


def test_each_file_of_a_seam_is_there_and_needs_a_process_or_mlx() -> None:
    files = [TESTS / file for files in SEAMS.values() for file in files]
    assert [file for file in files if not file.is_file() or is_fast(file)] == []
    assert all(is_in_gate(ROOT / file) for file in ON_ONE_SERVER)


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.file)
def test_each_fault_still_has_its_place(fault: Fault) -> None:
    text = (ROOT / fault.file).read_text()
    assert planted(fault, text) != text
