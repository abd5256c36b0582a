"""The buffers of the link between two processes of one machine, where the system gives little."""

from __future__ import annotations

import socket

import pytest

from scheduler.processes.child_process import link_pair
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


def test_the_steps_of_a_pause_fit() -> None:
    """The engine does not wait for a server that reads nothing for 50 ms."""
    frame = encode(StepOutput([TokenOut(row, 100_000 + row) for row in range(ROWS)], [], [], Counters()))
    ours, theirs = link_pair()
    with ours, theirs:
        theirs.setblocking(False)
        assert sum(theirs.send(frame) for _ in range(PAUSE_STEPS)) == PAUSE_STEPS * len(frame)
