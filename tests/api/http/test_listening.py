"""What a service manager gives a server and hears of it: sockets, and sd_notify."""

from __future__ import annotations

import os
import socket
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from trio.testing import trio_test

from api.http.listening import ServiceNotice, inherited_listeners
from scheduler.errors import StartupError

FIRST = 200
"""Where descriptors begin here: 3 is the test runner's."""


@contextmanager
def handed_over(*sockets: socket.socket) -> Iterator[dict[str, str]]:
    """Yield the environment of a process that gets copies of these, in this order."""
    with ExitStack() as stack:
        for number, one in enumerate(sockets, FIRST):
            os.dup2(one.fileno(), number)
            stack.callback(_close, number)
        yield {
            "LISTEN_PID": str(os.getpid()),
            "LISTEN_FDS": str(len(sockets)),
            "LISTEN_FDNAMES": "x",
            "A": "b",
        }


def _close(descriptor: int) -> None:
    # Its listener may have closed it.
    with suppress(OSError):
        os.close(descriptor)


@trio_test
async def test_what_waits_in_the_backlog_is_accepted() -> None:
    """Also a connection that came before; and closing one holder's socket leaves the other's open."""
    with socket.create_server(("127.0.0.1", 0)) as opened, handed_over(opened) as environment:
        with socket.create_connection(opened.getsockname()) as early:
            (listener,) = inherited_listeners(environment, 0, FIRST)
            async with await listener.accept() as accepted:
                early.sendall(b"x")
                assert await accepted.receive_some(1) == b"x"
        assert not os.get_inheritable(listener.socket.fileno())
        assert environment == {"A": "b"}, "an engine does not take the sockets for its own"
        await listener.aclose()
        with socket.create_connection(opened.getsockname()):
            assert opened.accept()[0].detach()


@pytest.mark.parametrize(
    "changed", [{"LISTEN_PID": "1"}, {"LISTEN_PID": ""}, {"LISTEN_FDS": "x"}, {"LISTEN_FDS": ""}]
)
def test_another_processs_sockets_are_not_taken(changed: dict[str, str]) -> None:
    """As a shell's, from which somebody starts a second server."""
    with socket.create_server(("127.0.0.1", 0)) as opened, handed_over(opened) as environment:
        assert inherited_listeners(environment | changed, 0, FIRST) == []


def test_another_port_is_refused() -> None:
    with socket.create_server(("127.0.0.1", 0)) as opened, handed_over(opened) as environment:
        port = opened.getsockname()[1]
        with pytest.raises(StartupError, match=rf"listens on port {port}, not on 1"):
            inherited_listeners(environment, 1, FIRST)


def test_what_does_not_listen_is_refused(tmp_path: Path) -> None:
    with (
        socket.socket() as idle,
        socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as local,
        open(tmp_path / "file", "w") as file,
    ):
        # macOS does not say whether a socket listens.
        for one in (local,) if sys.platform == "darwin" else (idle, local):
            with (
                handed_over(one) as environment,
                pytest.raises(StartupError, match="no listening TCP socket"),
            ):
                inherited_listeners(environment, 0, FIRST)
        os.dup2(file.fileno(), FIRST)
        environment = {"LISTEN_PID": str(os.getpid()), "LISTEN_FDS": "1"}
        with pytest.raises(StartupError, match="is no socket"):
            inherited_listeners(dict(environment), 0, FIRST)
        os.close(FIRST)
        with pytest.raises(StartupError, match="is no socket"):
            inherited_listeners(dict(environment), 0, FIRST)


def test_a_message_is_one_datagram_of_lines() -> None:
    """Processes started from here, which inherit the environment, report nothing; and a manager that is gone,
    or was never there, is not missed."""
    # Not in tmp_path: a socket's path has at most 103 bytes on macOS, whose TMPDIR has 49.
    with (
        TemporaryDirectory(dir="/tmp") as folder,
        socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager,
    ):
        manager.bind(f"{folder}/notify")
        given = {"NOTIFY_SOCKET": manager.getsockname(), "KEPT": "1"}
        notice = ServiceNotice(given)
        assert given == {"KEPT": "1"}
        notice.send(READY="1", STATUS="two\nlines")
        assert manager.recv(4096) == b"READY=1\nSTATUS=two lines"
    notice.send(READY="1")
    ServiceNotice({}).send(READY="1")


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux has abstract sockets")
def test_an_abstract_name_begins_with_an_at_sign() -> None:
    name = f"penstock-test-{os.getpid()}"
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as receiver:
        receiver.bind(f"\0{name}")
        ServiceNotice({"NOTIFY_SOCKET": f"@{name}"}).send(READY="1")
        assert receiver.recv(4096) == b"READY=1"
