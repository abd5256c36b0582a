"""Starts an engine of several ranks from rank 0: the other ranks' processes, and a Leader over them."""

from __future__ import annotations

import os
import queue
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from secrets import token_hex
from typing import NoReturn

import msgspec

from scheduler.engine.backend_choice import make_backend
from scheduler.engine.ranks.calls import Answer, Failed, Heard, Joined, Said, Start, State, Told
from scheduler.engine.ranks.leader import Leader
from scheduler.engine.ranks.replay import ToldClock
from scheduler.link.framing import FrameReader, encode, message_decoder
from scheduler.link.messages import Load

_READ_BYTES = 1 << 16
_STATUS_SECONDS = 2.0
"""Time for the system to say how a rank ended whose socket is closed."""

Lost = Callable[[str], NoReturn]
"""Ends this process, for this reason; called by any thread."""


def lead(load: Load, report: Callable[[str], None], lost: Lost) -> Leader:
    """Start the other ranks, load the model together with them, and return the back end of all.

    `lost`: called when another rank ends, at any time from now on: the main thread may wait for it in a
    collective, which on some networks never returns. Raises LoadRefused where the ranks are not alike, and
    what loading raises.
    """
    shared = _with_addresses(load)
    assert shared.ranks is not None
    report(f"starting {shared.ranks.ranks - 1} more ranks")
    followers = LocalFollowers(shared, lost)
    os.environ.update(gpu_of(0, os.environ))  # Before MLX is imported.
    clock = ToldClock()
    return Leader(make_backend(shared, report, clock, exchange=followers.exchange), followers, clock)


def _with_addresses(load: Load) -> Load:
    assert load.ranks is not None
    if load.ranks.hosts:
        return load
    group = msgspec.structs.replace(load.ranks, hosts=_free_addresses(load.ranks.ranks), token=token_hex(32))
    filled: Load = msgspec.structs.replace(load, ranks=group)
    return filled


def _free_addresses(count: int) -> tuple[str, ...]:
    """Ports of the loopback that nobody listens on now; all are held until the last is known."""
    with ExitStack() as held:
        sockets = [held.enter_context(socket.socket()) for _ in range(count)]
        for each in sockets:
            each.bind(("127.0.0.1", 0))
        return tuple(f"127.0.0.1:{each.getsockname()[1]}" for each in sockets)


def gpu_of(rank: int, environment: Mapping[str, str]) -> dict[str, str]:
    """The one of this engine's CUDA cards that a rank on this machine uses, as variables to set."""
    cards = [card.strip() for card in environment.get("CUDA_VISIBLE_DEVICES", "").split(",") if card.strip()]
    return {"CUDA_VISIBLE_DEVICES": cards[rank]} if rank < len(cards) else {}


class LocalFollowers:
    """Ranks on this machine, each a process of its own on a socket pair."""

    def __init__(self, load: Load, lost: Lost) -> None:
        assert load.ranks is not None
        self._lost = lost
        self._said: list[queue.SimpleQueue[bytes]] = []
        self._joined: list[queue.SimpleQueue[Joined]] = []
        self._states: queue.SimpleQueue[tuple[int, State]] = queue.SimpleQueue()
        self._links: list[socket.socket] = []
        self._processes: list[subprocess.Popen[bytes]] = []
        for rank in range(1, load.ranks.ranks):
            self._start(rank, load)

    def _start(self, rank: int, load: Load) -> None:
        ours, theirs = socket.socketpair()
        with theirs:
            process = subprocess.Popen(
                [sys.executable, "-m", "scheduler.engine.ranks.follower", "--fd", str(theirs.fileno())],
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                env={**os.environ, **gpu_of(rank, os.environ)},
            )
        self._links.append(ours)
        self._processes.append(process)
        self._said.append(queue.SimpleQueue())
        self._joined.append(queue.SimpleQueue())
        ours.sendall(encode(Told(0.0, Start(load, rank))))
        threading.Thread(target=self._read, args=[rank], name=f"rank {rank}", daemon=True).start()

    @property
    def pids(self) -> list[int]:
        return [process.pid for process in self._processes]

    def tell(self, told: Told) -> None:
        frame = encode(told)
        for rank, link in enumerate(self._links, 1):
            try:
                link.sendall(frame)
            except OSError as error:
                # The thread that reads from it says how it ended.
                time.sleep(_STATUS_SECONDS)
                raise ConnectionError(f"rank {rank} is gone: {error}") from error

    def exchange(self, mine: bytes) -> list[bytes]:
        """While the model is loaded: tell every rank what all have said, by rank, and return it."""
        said = [mine, *(each.get() for each in self._said)]
        self.tell(Told(0.0, Heard(tuple(said))))
        return said

    def joined(self) -> Sequence[Joined]:
        return [each.get() for each in self._joined]

    def states(self) -> Sequence[tuple[int, State]]:
        found: list[tuple[int, State]] = []
        while not self._states.empty():
            found.append(self._states.get())
        return found

    def _read(self, rank: int) -> None:
        link, reader = self._links[rank - 1], FrameReader[Answer](message_decoder(Answer))
        try:
            while data := link.recv(_READ_BYTES):
                for answer in reader.feed(data):
                    self._take(rank, answer)
            reason = self._end_of(rank)
        except Exception as error:
            reason = f"rank {rank}: {type(error).__name__}: {error}"
        self._end(reason)

    def _take(self, rank: int, answer: Answer) -> None:
        match answer:
            case Said(mine=mine):
                self._said[rank - 1].put(mine)
            case Joined():
                self._joined[rank - 1].put(answer)
            case State():
                self._states.put((rank, answer))
            case Failed(error=error, stack=stack):
                print(stack, file=sys.stderr)
                self._end(f"rank {rank}: {error}")

    def _end_of(self, rank: int) -> str:
        try:
            status = self._processes[rank - 1].wait(_STATUS_SECONDS)
        except subprocess.TimeoutExpired:
            return f"rank {rank} closed its socket"
        if status < 0:
            return f"rank {rank} was killed by {signal.Signals(-status).name}"
        return f"rank {rank} exited with status {status}"

    def _end(self, reason: str) -> NoReturn:
        for process in self._processes:
            process.kill()
        self._lost(reason)
