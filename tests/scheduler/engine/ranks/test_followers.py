"""The rank that is gone is named, however its connection ended, and no other one for it."""

from __future__ import annotations

import queue
import socket
import struct
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import NoReturn

import pytest

from scheduler.engine.ranks.followers import LinkedFollowers
from scheduler.shared.messages import ScriptedPlan
from tests.scheduler.engine.ranks.engine_of_ranks import load

_SECONDS = 20


@dataclass
class TcpPeer:
    """Another rank's end of a connection over TCP."""

    link: socket.socket
    theirs: socket.socket
    ended: threading.Event = field(default_factory=threading.Event)

    @classmethod
    def make(cls) -> TcpPeer:
        with socket.create_server(("127.0.0.1", 0)) as server:
            theirs = socket.create_connection(server.getsockname())
            ours, _ = server.accept()
        return cls(ours, theirs)

    def ending(self) -> str:
        return "closed its connection"

    def end(self) -> None:
        self.ended.set()
        self.theirs.close()

    def die(self, *, reset: bool) -> None:
        if reset:
            self.theirs.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.theirs.close()


@contextmanager
def _followed(count: int) -> Iterator[tuple[list[TcpPeer], queue.SimpleQueue[str]]]:
    peers, reasons = [TcpPeer.make() for _ in range(count)], queue.SimpleQueue[str]()

    def lost(reason: str) -> NoReturn:
        reasons.put(reason)
        while True:  # As it never returns; the thread is a daemon.
            threading.Event().wait()

    try:
        LinkedFollowers(peers, load(count + 1, ScriptedPlan()), lost)
        yield peers, reasons
    finally:
        for peer in peers:
            peer.theirs.close()
            peer.link.close()


@pytest.mark.parametrize("reset", [False, True], ids=["closed", "reset"])
def test_a_rank_that_dies_is_named(reset: bool) -> None:
    """A process that is killed with unread calls resets its connection."""
    with _followed(1) as ((peer,), reasons):
        peer.die(reset=reset)
        assert reasons.get(timeout=_SECONDS) == "rank 1 closed its connection"


def test_the_others_that_end_with_it_are_not_named() -> None:
    """Rank 0 ends them because of the first."""
    with _followed(3) as (peers, reasons):
        peers[1].die(reset=False)
        assert reasons.get(timeout=_SECONDS) == "rank 2 closed its connection"
        assert all(peer.ended.wait(_SECONDS) for peer in peers)
        with pytest.raises(queue.Empty):
            reasons.get(timeout=0.5)
