"""The buffers of the link between two processes of one machine, where the system gives little."""

from __future__ import annotations

import os
import socket
from typing import NoReturn

import pytest
import trio
from trio.testing import trio_test

from scheduler.processes.child_process import BUFFER_BYTES, ChildProcess, link_pair
from scheduler.shared.counters import Counters
from scheduler.shared.framing import encode
from scheduler.shared.messages import StepOutput, TokenOut

REAL = socket.socketpair
MACOS_BYTES = 8192
ROWS = 32
PAUSE_STEPS = 12
"""There are this many steps of 4 ms in a pause of the server's loop of 50 ms."""


@pytest.fixture(autouse=True)
def little(monkeypatch: pytest.MonkeyPatch) -> None:
    """Pairs have macOS's 8 KiB unless more is asked for."""

    def small() -> tuple[socket.socket, socket.socket]:
        ends = REAL()
        for end in ends:
            # Linux doubles what it is given.
            end.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, MACOS_BYTES // 2)
            end.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, MACOS_BYTES // 2)
        return ends

    monkeypatch.setattr(socket, "socketpair", small)


def test_both_ends_have_large_buffers() -> None:
    for end in link_pair():
        with end:
            for option in (socket.SO_SNDBUF, socket.SO_RCVBUF):
                # Linux bounds it by wmem_max and rmem_max, which are 208 KiB unless they were raised.
                assert end.getsockopt(socket.SOL_SOCKET, option) >= min(BUFFER_BYTES, 208 << 10)


def _room(end: socket.socket | trio.socket.SocketType) -> int:
    return min(end.getsockopt(socket.SOL_SOCKET, option) for option in (socket.SO_SNDBUF, socket.SO_RCVBUF))


@trio_test
async def test_the_link_of_an_engine_has_them() -> None:
    found: list[int] = []

    async def talk(stream: trio.abc.Stream) -> bool:
        assert isinstance(stream, trio.SocketStream)
        found.append(_room(stream.socket))
        return False

    await ChildProcess("engine", "this", [], os.environ, 5.0).run(talk)
    assert found[0] > MACOS_BYTES


def test_the_steps_of_a_pause_fit() -> None:
    """The engine does not wait for a server that reads nothing for 50 ms."""
    frame = encode(StepOutput([TokenOut(row, 100_000 + row) for row in range(ROWS)], [], [], Counters()))
    ours, theirs = link_pair()
    with ours, theirs:
        theirs.setblocking(False)
        assert sum(theirs.send(frame) for _ in range(PAUSE_STEPS)) == PAUSE_STEPS * len(frame)


def test_a_system_that_refuses_the_size_keeps_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    """As macOS does above kern.ipc.maxsockbuf."""

    def refused(*_: object) -> NoReturn:
        raise OSError(55, "No buffer space available")

    monkeypatch.setattr(socket.socket, "setsockopt", refused)
    monkeypatch.setattr(socket, "socketpair", REAL)
    ours, theirs = link_pair()
    with ours, theirs:
        ours.sendall(b"x")
        assert theirs.recv(1) == b"x"
