"""The other ranks as rank 0 sees them: a socket to each, and a thread that reads it.

When one is gone, that thread reports it at once, even while the main thread waits.
"""

from __future__ import annotations

import queue
import socket
import sys
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import NoReturn, Protocol

from scheduler.engine.plan import StepPlan
from scheduler.engine.ranks.messages import (
    Answer,
    Joined,
    LoadReport,
    LoadReports,
    Prepare,
    RankFailed,
    RankState,
    Start,
)
from scheduler.shared.framing import FrameReader, encode, message_decoder
from scheduler.shared.messages import Load

_READ_BYTES = 1 << 16
STATUS_SECONDS = 2.0
"""Time for the system to report how a rank ended whose socket is closed."""

Lost = Callable[[str], NoReturn]
"""Ends this process, for this reason; called by any thread."""


class Peer(Protocol):
    """One other rank's process, or its machine."""

    @property
    def link(self) -> socket.socket: ...

    def ending(self) -> str:
        """Return how it ended, after the end of its socket: the rest of a sentence that begins with its
        name."""
        ...

    def end(self) -> None:
        """End its process, or leave it to the end of its socket."""
        ...


class LinkedFollowers:
    """The other ranks, in the order of their numbers, from 1 on."""

    def __init__(self, peers: Sequence[Peer], load: Load, lost: Lost) -> None:
        """Let them load `load`. `lost`: called when one of them is gone, at any time from now on."""
        self._peers = peers
        self._lost = lost
        self._reports = [queue.SimpleQueue[bytes]() for _ in peers]
        self._joined = [queue.SimpleQueue[Joined]() for _ in peers]
        self._states: queue.SimpleQueue[tuple[int, RankState]] = queue.SimpleQueue()
        self._ending = threading.Lock()
        for rank, peer in enumerate(peers, 1):
            peer.link.sendall(encode(Start(load, rank)))
            threading.Thread(target=self._read, args=[rank], name=f"rank {rank}", daemon=True).start()

    def send(self, message: LoadReports | Prepare | StepPlan) -> None:
        frame = encode(message)
        for rank, peer in enumerate(self._peers, 1):
            try:
                peer.link.sendall(frame)
            except OSError as error:
                # The thread that reads from it reports how it ended.
                time.sleep(2 * STATUS_SECONDS)
                raise ConnectionError(f"rank {rank} is gone: {error}") from error

    def exchange(self, mine: bytes) -> list[bytes]:
        """Send all ranks' reports to each of them while the model is loaded; return them by rank."""
        reports = [mine, *(each.get() for each in self._reports)]
        self.send(LoadReports(tuple(reports)))
        return reports

    def joined(self) -> Sequence[Joined]:
        return [each.get() for each in self._joined]

    def states(self) -> Sequence[tuple[int, RankState]]:
        found: list[tuple[int, RankState]] = []
        while not self._states.empty():
            found.append(self._states.get())
        return found

    def _read(self, rank: int) -> None:
        peer, reader = self._peers[rank - 1], FrameReader[Answer](message_decoder(Answer))
        try:
            # A rank that dies with unread calls resets its connection, which is its end as well.
            with suppress(ConnectionError):
                while data := peer.link.recv(_READ_BYTES):
                    for answer in reader.feed(data):
                        self._take(rank, answer)
            reason = f"rank {rank} {peer.ending()}"
        except Exception as error:
            reason = f"rank {rank} is gone: {error}"
        self._end(reason)

    def _take(self, rank: int, answer: Answer) -> None:
        match answer:
            case LoadReport(mine=mine):
                self._reports[rank - 1].put(mine)
            case Joined():
                self._joined[rank - 1].put(answer)
            case RankState():
                self._states.put((rank, answer))
            case RankFailed(error=error, stack=stack):
                print(stack, file=sys.stderr)
                self._end(f"rank {rank}: {error}")

    def _end(self, reason: str) -> NoReturn:
        # Never released: the others end because of the first, and must not be named instead of it.
        self._ending.acquire()
        for peer in self._peers:
            peer.end()
        self._lost(reason)
