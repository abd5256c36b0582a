"""The buffers of the link between two processes of one machine, where the system gives little."""

from __future__ import annotations

import socket

import pytest

from scheduler.processes.child_process import link_pair
from scheduler.shared.counters import Counters
from scheduler.shared.framing import encode
from scheduler.shared.messages import StepOutput, TokenOut

REAL = socket.socketpair


def small() -> tuple[socket.socket, socket.socket]:
    """Pairs of macOS have 8 KiB unless more is asked for. Linux doubles what it is given."""
    ends = REAL()
    for end in ends:
        end.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)
        end.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    return ends


def test_the_steps_of_a_pause_fit(monkeypatch: pytest.MonkeyPatch) -> None:
    """The engine does not wait for a server that reads nothing for 50 ms: 12 steps of 32 rows."""
    monkeypatch.setattr(socket, "socketpair", small)
    frame = encode(StepOutput([TokenOut(row, 100_000 + row) for row in range(32)], [], [], Counters()))
    ours, theirs = link_pair()
    with ours, theirs:
        theirs.setblocking(False)
        assert sum(theirs.send(frame) for _ in range(12)) == 12 * len(frame)
