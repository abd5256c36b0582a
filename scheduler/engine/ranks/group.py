"""Starts an engine of several ranks from rank 0: the other ranks' processes here, or connections of those on
other machines, and the back end of all."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from secrets import token_hex

import msgspec

from scheduler.engine.backend_choice import make_backend
from scheduler.engine.ranks.all_ranks import AllRanks
from scheduler.engine.ranks.arrivals import Arrived, arrivals
from scheduler.engine.ranks.followers import STATUS_SECONDS, LinkedFollowers, Lost
from scheduler.engine.ranks.other_rank import PlanClock
from scheduler.shared.link_pair import link_pair
from scheduler.shared.messages import Load, RankGroup


def lead(load: Load, report: Callable[[str], None], lost: Lost) -> AllRanks:
    """Start the other ranks, or wait for them, load the model together, and return the back end of all.

    `lost`: called when another rank ends, at any time from now on: the main thread may wait for it in a
    collective, which on some networks never returns. Raise LoadRefused where the ranks are not alike or do
    not come, and what loading raises.
    """
    with _with_addresses(load) as shared:
        group = shared.ranks
        assert group is not None
        peers: list[LocalRank] | list[Arrived]
        if group.control:
            report(f"waiting for {group.ranks - 1} more ranks")
            peers = arrivals(group)
        else:
            report(f"starting {group.ranks - 1} more ranks")
            peers = _all_started(group.ranks)
            os.environ.update(gpu_of(0, os.environ))  # Before MLX is imported.
        followers = LinkedFollowers(peers, shared, lost)
        clock = PlanClock()
        return AllRanks(make_backend(shared, report, clock, exchange=followers.exchange), followers, clock)


@contextmanager
def _with_addresses(load: Load) -> Iterator[Load]:
    assert load.ranks is not None
    if load.ranks.hosts:
        yield load
        return
    with held_addresses(load.ranks.ranks) as hosts:
        group: RankGroup = msgspec.structs.replace(load.ranks, hosts=hosts, token=token_hex(32))
        yield msgspec.structs.replace(load, ranks=group)


@contextmanager
def held_addresses(count: int) -> Iterator[tuple[str, ...]]:
    """Yield addresses of the loopback, and keep other processes from binding them until the block ends.

    MLX's ring binds with SO_REUSEADDR and SO_REUSEPORT (mlx/distributed/utils.cpp, `TCPSocket::listen`), so
    a rank listens beside a socket with these options that is bound and does not listen; nobody else may.
    """
    with ExitStack() as held:
        sockets = [held.enter_context(socket.socket()) for _ in range(count)]
        for each in sockets:
            each.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            each.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
            each.bind(("127.0.0.1", 0))
        yield tuple(f"127.0.0.1:{each.getsockname()[1]}" for each in sockets)


def gpu_of(rank: int, environment: Mapping[str, str]) -> dict[str, str]:
    """Return the one of this engine's CUDA cards that a rank on this machine uses, as variables to set."""
    cards = [card.strip() for card in environment.get("CUDA_VISIBLE_DEVICES", "").split(",") if card.strip()]
    return {"CUDA_VISIBLE_DEVICES": cards[rank]} if rank < len(cards) else {}


@dataclass(frozen=True, slots=True)
class LocalRank:
    """A rank on this machine: a process on a socket pair."""

    link: socket.socket
    process: subprocess.Popen[bytes]

    def ending(self) -> str:
        try:
            status = self.process.wait(STATUS_SECONDS)
        except subprocess.TimeoutExpired:
            return "closed its socket"
        return (
            f"was killed by {signal.Signals(-status).name}" if status < 0 else f"exited with status {status}"
        )

    def end(self) -> None:
        self.process.kill()


def _all_started(ranks: int) -> list[LocalRank]:
    """Start ranks 1 and up. Raise OSError if one cannot be started; none is left then."""
    with ExitStack() as undo:
        started = []
        for rank in range(1, ranks):
            one = _started(rank)
            undo.callback(one.link.close)
            undo.callback(one.end)
            started.append(one)
        undo.pop_all()
    return started


def _started(rank: int) -> LocalRank:
    with ExitStack() as undo:
        ours, theirs = link_pair()
        undo.callback(ours.close)
        with theirs:
            process = subprocess.Popen(
                [sys.executable, "-m", "scheduler.engine.ranks.follower", "--fd", str(theirs.fileno())],
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                env={**os.environ, **gpu_of(rank, os.environ)},
            )
        undo.pop_all()
    return LocalRank(ours, process)
