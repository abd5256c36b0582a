"""Other ranks in this process: each plan is encoded, decoded and carried out at once, on back ends of their
own."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from scheduler.engine.backend import Backend
from scheduler.engine.plan import StepPlan
from scheduler.engine.ranks.all_ranks import COMPARED_STEPS, AllRanks
from scheduler.engine.ranks.messages import Joined, Prepare, RankState, ToRank
from scheduler.engine.ranks.other_rank import OtherRank, PlanClock, joined
from scheduler.shared.framing import FrameReader, encode, message_decoder

Sent = Prepare | StepPlan
MakeRank = Callable[[PlanClock], Backend]


class MemoryFollowers:
    """`sent` has all messages. `change` makes of one what the other ranks get, or loses it by None."""

    def __init__(self, make: MakeRank, count: int) -> None:
        self.sent: list[Sent] = []
        self.change: Callable[[Sent], Sent | None] = lambda message: message
        clocks = [PlanClock() for _ in range(count)]
        self.backends = [make(clock) for clock in clocks]
        self._reader: FrameReader[ToRank] = FrameReader(message_decoder(ToRank))
        self._states: list[tuple[int, RankState]] = []
        self._ranks = [
            OtherRank(backend, clock, lambda state, rank=rank: self._states.append((rank, state)))  # type: ignore[misc]
            for rank, (backend, clock) in enumerate(zip(self.backends, clocks, strict=True), 1)
        ]

    def send(self, message: Sent) -> None:
        self.sent.append(message)
        if (changed := self.change(message)) is None:
            return
        for rank in self._ranks:
            (received,) = self._reader.feed(encode(changed))
            rank.carry_out(received)

    def joined(self) -> Sequence[Joined]:
        return [joined(backend) for backend in self.backends]

    def states(self) -> Sequence[tuple[int, RankState]]:
        found, self._states = self._states, []
        return found


class Ranks:
    """Ranks in this process, and `together`, the back end of all. `now`: rank 0's clock, which a test may
    move."""

    def __init__(self, make: MakeRank, count: int = 2, compared_steps: int = COMPARED_STEPS) -> None:
        self.now = 1.0
        self.followers = MemoryFollowers(make, count - 1)
        clock = PlanClock()
        self.own = make(clock)
        self.all: list[Backend] = [self.own, *self.followers.backends]
        self.together = AllRanks(self.own, self.followers, clock, lambda: self.now, compared_steps)
