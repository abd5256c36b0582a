"""The output of `ps` and `lsof`. On Linux this also runs the code for macOS."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator

import pytest

from loadtests import processes
from tests.end_to_end.serving import eventually

_SLEEPER = """
import time
held = [open('/dev/null') for _ in range(20)]
print('up', flush=True)
time.sleep(600)
"""


@pytest.fixture
def sleeper() -> Iterator[subprocess.Popen[str]]:
    with subprocess.Popen([sys.executable, "-c", _SLEEPER], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "up\n"
        yield process
        process.kill()


def test_a_child_is_found_until_it_has_ended(sleeper: subprocess.Popen[str]) -> None:
    assert sleeper.pid in processes.children(os.getpid())
    assert not processes.is_gone(sleeper.pid)
    (found,) = (one for one in processes.processes() if one.pid == sleeper.pid)
    assert (found.parent, found.group) == (os.getpid(), os.getpgid(0))
    assert "time.sleep(600)" in found.command
    sleeper.kill()
    # It has ended, and nobody has waited for it.
    eventually(lambda: processes.is_gone(sleeper.pid))
    assert sleeper.pid not in processes.children(os.getpid())
    sleeper.wait()
    assert processes.is_gone(sleeper.pid)
    for look in (processes.resident_bytes, processes.threads, processes.open_files):
        with pytest.raises((ProcessLookupError, FileNotFoundError)):
            look(sleeper.pid)


def test_what_a_process_holds(sleeper: subprocess.Popen[str]) -> None:
    held = processes.of_process(sleeper.pid)
    assert 1 << 20 < held["resident bytes"] < 1 << 30
    assert held["threads"] == 1
    assert held["open files"] == processes.open_files_by_lsof(sleeper.pid) >= 20
