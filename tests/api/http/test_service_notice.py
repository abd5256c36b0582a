"""sd_notify: what a service manager hears, and that nothing happens where there is none."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator
from tempfile import TemporaryDirectory

import pytest

from api.http.service_manager import ServiceNotice


@pytest.fixture
def manager() -> Iterator[socket.socket]:
    # Not in tmp_path: a socket's path has at most 103 bytes on macOS, whose TMPDIR has 49.
    with (
        TemporaryDirectory(dir="/tmp") as folder,
        socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as receiver,
    ):
        receiver.setblocking(False)
        receiver.bind(f"{folder}/notify")
        yield receiver


def environment(manager: socket.socket, **more: str) -> dict[str, str]:
    return {"NOTIFY_SOCKET": manager.getsockname(), "KEPT": "1", **more}


def test_a_message_is_one_datagram_of_lines(manager: socket.socket) -> None:
    ServiceNotice(environment(manager)).send(READY="1", STATUS="two\nlines")
    assert manager.recv(4096) == b"READY=1\nSTATUS=two lines"


def test_processes_started_from_here_report_nothing(manager: socket.socket) -> None:
    """The engine inherits the environment."""
    given = environment(manager)
    ServiceNotice(given)
    assert given == {"KEPT": "1"}


def test_a_manager_that_is_gone_is_not_missed(manager: socket.socket) -> None:
    notice = ServiceNotice(environment(manager))
    manager.close()
    notice.send(READY="1")
    ServiceNotice({}).send(READY="1")


def test_an_abstract_name_begins_with_an_at_sign() -> None:
    name = f"penstock-test-{os.getpid()}"
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as receiver:
        try:
            receiver.bind(f"\0{name}")
        except OSError:
            pytest.skip("no abstract sockets on this system")
        ServiceNotice({"NOTIFY_SOCKET": f"@{name}"}).send(READY="1")
        assert receiver.recv(4096) == b"READY=1"
