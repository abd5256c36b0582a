"""Which files `make test-fast` runs: those that start no process and compute nothing with MLX.

Nobody keeps a list: a file's imports say it, and those of the files in tests/ and loadtests/ that it imports.
A single test that starts a process by product code, or takes seconds, is marked `slow` and left out, too.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any

from tests.repo.tree import ROOT, imports

_SLOW = (
    "mlx",
    "mlx_lm",
    "multiprocessing",
    "scheduler.engine.mlx",
    "scheduler.processes.child_process.ChildProcess",
    "scheduler.processes.process.ProcessLauncher",
    "subprocess",
)
_STARTS = frozenset({"subprocess.Popen", "os.fork", "os.forkpty", "os.posix_spawn"})


@cache
def is_fast(file: Path) -> bool:
    """Whether the test file, or any test file of the folder, needs neither a process nor MLX."""
    if file.is_dir():
        return any(is_fast(one) for one in file.rglob("test_*.py"))
    return not any(_is_slow(name) for reached in _reached(file) for name in imports(reached, members=True))


@contextmanager
def no_processes() -> Iterator[None]:
    """Fail a test that starts a process, though its file imports nothing that says so."""
    is_over = False

    def hook(event: str, _: tuple[Any, ...]) -> None:
        if event in _STARTS and not is_over:
            raise AssertionError("a test of `make test-fast` started a process: mark it `slow`")

    sys.addaudithook(hook)  # which nothing can remove
    try:
        yield
    finally:
        is_over = True


def _reached(file: Path) -> set[Path]:
    """Return the file, and those of tests/ and loadtests/ that it imports, directly or not."""
    reached: set[Path] = set()
    todo = [file]
    while todo:
        if (one := todo.pop()) not in reached:
            reached.add(one)
            todo += [found for name in imports(one, members=True) if (found := _our_file(name)) is not None]
    return reached


def _is_slow(name: str) -> bool:
    return any(name == slow or name.startswith(f"{slow}.") for slow in _SLOW)


@cache
def _our_file(name: str) -> Path | None:
    """Return the file of a module, or of the module that has this name."""
    if not name.startswith(("tests.", "loadtests.")):
        return None
    place = ROOT.joinpath(*name.split("."))
    return next((file for one in (place, place.parent) if (file := one.with_suffix(".py")).is_file()), None)
