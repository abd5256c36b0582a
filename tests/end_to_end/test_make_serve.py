"""`make serve`, README's first command, starts a server that answers what it prints to try."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Iterator

import pytest

from tests.repo.tree import ROOT


@pytest.fixture
def lines() -> Iterator[Iterator[str]]:
    """What `make serve` prints, until the test ends it with Ctrl-C."""
    process = subprocess.Popen(
        # The environment of the tests is installed already.
        ["make", "--assume-old=.venv/serve-cpu", "serve", "ARGS=--model embedded --port 0"],
        cwd=ROOT,
        env={**os.environ, "PYTHONUNBUFFERED": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        start_new_session=True,
    )
    assert process.stdout is not None
    try:
        yield iter(process.stdout)
    finally:
        os.killpg(process.pid, signal.SIGINT)
        process.communicate(timeout=60)


def test_the_request_that_the_start_prints_is_answered(lines: Iterator[str]) -> None:
    command = next(line for line in lines if line.startswith("try ")).removeprefix("try").strip()
    answer = subprocess.run(["sh", "-c", command], capture_output=True, text=True, timeout=60, check=True)
    assert "Penstock" in answer.stdout
