"""Other ranks in this process: each call is encoded, decoded and replayed at once, on back ends of their
own."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from scheduler.engine.backend import Backend
from scheduler.engine.ranks.calls import Call, Joined, State, Told
from scheduler.engine.ranks.leader import COMPARED_STEPS, Leader
from scheduler.engine.ranks.replay import Replay, ToldClock, joined
from scheduler.link.framing import FrameReader, encode, message_decoder

MakeRank = Callable[[ToldClock], Backend]


class MemoryFollowers:
    """`calls`: all that were sent. `change`: what a test makes of a call for the other ranks; None: it is
    lost."""

    def __init__(self, make: MakeRank, count: int) -> None:
        self.calls: list[Call] = []
        self.change: Callable[[Call], Call | None] = lambda call: call
        clocks = [ToldClock() for _ in range(count)]
        self.backends = [make(clock) for clock in clocks]
        self._reader: FrameReader[Told] = FrameReader(message_decoder(Told))
        self._states: list[tuple[int, State]] = []
        self._replays = [
            Replay(backend, clock, lambda state, rank=rank: self._states.append((rank, state)))  # type: ignore[misc]
            for rank, (backend, clock) in enumerate(zip(self.backends, clocks, strict=True), 1)
        ]

    def tell(self, told: Told) -> None:
        self.calls.append(told.call)
        if (call := self.change(told.call)) is None:
            return
        for replay in self._replays:
            (received,) = self._reader.feed(encode(Told(told.now, call)))
            replay.apply(received)

    def joined(self) -> Sequence[Joined]:
        return [joined(backend) for backend in self.backends]

    def states(self) -> Sequence[tuple[int, State]]:
        found, self._states = self._states, []
        return found


class Ranks:
    """A leader over ranks in this process. `now`: rank 0's clock, which a test may move."""

    def __init__(self, make: MakeRank, count: int = 2, compared_steps: int = COMPARED_STEPS) -> None:
        self.now = 1.0
        self.followers = MemoryFollowers(make, count - 1)
        clock = ToldClock()
        self.own = make(clock)
        self.all: list[Backend] = [self.own, *self.followers.backends]
        self.leader = Leader(self.own, self.followers, clock, lambda: self.now, compared_steps)
