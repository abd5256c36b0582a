"""`make test-fast` chooses files by what they import, and holds them to it."""

from __future__ import annotations

import subprocess
import sys

import pytest

from tests.fast import is_fast, no_processes
from tests.repo.tree import ROOT

TESTS = ROOT / "tests"


@pytest.mark.parametrize(
    ("file", "fast"),
    [
        ("scheduler/intake/test_fair_queue.py", True),
        ("failures/test_resume.py", True),
        ("end_to_end/test_lifetime.py", False),  # subprocess
        ("end_to_end/test_tool_loops.py", False),  # through end_to_end/serving.py
        ("scheduler/engine/mlx/test_exactness.py", False),
        ("scheduler/processes/test_process.py", False),  # through real_engine.py
        ("scheduler/engine/mlx", False),
        ("scheduler/intake", True),
    ],
)
def test_files_without_processes_and_without_mlx_are_fast(file: str, fast: bool) -> None:
    assert (TESTS / file).exists()
    assert is_fast(TESTS / file) is fast


def test_most_files_are_fast() -> None:
    files = list(TESTS.rglob("test_*.py"))
    assert sum(map(is_fast, files)) > len(files) / 2


def test_a_process_that_imports_do_not_show_fails_its_test() -> None:
    with no_processes(), pytest.raises(AssertionError, match="started a process"):
        subprocess.run([sys.executable, "-c", ""])
    assert subprocess.run([sys.executable, "-c", ""]).returncode == 0
