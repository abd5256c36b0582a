"""The engine's end of the link, in a separate process: it ends with the link, and reports why."""

from __future__ import annotations

import socket
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from scheduler.engine.inbox import SERVER_GONE, waited_seconds

_READS = """
import socket, sys
from scheduler.engine.inbox import Inbox
inbox = Inbox(socket.socket(fileno=int(sys.argv[1])))
inbox.start()
inbox.wait()
"""


def end_of(said: bytes) -> tuple[int, str]:
    """The exit status and stderr of an engine whose parent wrote this and closed the link."""
    ours, theirs = socket.socketpair()
    with ours, theirs:
        process = subprocess.Popen(
            [sys.executable, "-c", _READS, str(theirs.fileno())],
            pass_fds=[theirs.fileno()],
            stderr=subprocess.PIPE,
            text=True,
        )
        theirs.close()
        ours.sendall(said)
        ours.close()
        _, stderr = process.communicate(timeout=30)
    return process.returncode, stderr


@pytest.mark.parametrize("said", [b"\xff" * 64, b"\x00\x00\x00\x03abc"])
def test_nonsense_on_the_link_is_reported_on_stderr(said: bytes) -> None:
    """The parent reads its engine's stderr for the cause of its death; `os._exit` alone says nothing."""
    status, stderr = end_of(said)
    assert status == SERVER_GONE
    assert "LinkError" in stderr


def test_a_parent_that_goes_is_no_error() -> None:
    assert end_of(b"") == (SERVER_GONE, "")


def test_waiting_for_a_core_counts_but_that_of_the_reader(tmp_path: Path) -> None:
    """A healthy engine that a busy machine starves is not hung. Of a hung one only the reader wakes."""
    for thread, waited in ((threading.get_native_id(), 7), (1, 2), (2, 3)):
        (tmp_path / str(thread)).mkdir()
        (tmp_path / str(thread) / "schedstat").write_text(f"123456 {waited * 10**9} 17\n")
    (tmp_path / "gone").mkdir()
    assert waited_seconds(tmp_path) == 5.0
    assert waited_seconds(tmp_path / "no such folder") == 0.0
