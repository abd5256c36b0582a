"""The back end of several ranks: each plan is sent to the other ranks, and then carried out here.

The engine loop, its plan, pace and memory watch run on rank 0 only, and call this back end as any other.
Collectives are made by the model alone, while a plan is carried out; plans go over sockets: a collective of
our own while a step was in flight came back full of that step's numbers.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Protocol

import msgspec

from scheduler.engine.backend import Backend, BackendFacts, Cache, StepResult, check_rows
from scheduler.engine.device import Readings
from scheduler.engine.load_failure import LoadRefused
from scheduler.engine.plan import StepPlan, with_changes
from scheduler.engine.ranks.messages import Joined, Prepare, RankState
from scheduler.engine.ranks.other_rank import Digest, PlanClock, RanksDisagree, disagreement, joined
from scheduler.engine.sequence import EngineSequence
from scheduler.shared.messages import Ready

COMPARED_STEPS = 64
"""Steps that compute between two comparisons: until one, ranks that differ emit garbage."""
_NOTHING = StepPlan()
_COMPUTED = ("emit_pending", "chunks", "decode", "drafts", "foresee", "end", "evict", "predicted_seconds")
"""Fields of a plan that wait until all ranks have refused the same sequences."""


class Followers(Protocol):
    """The other ranks, in the order of their numbers, from 1 on."""

    def send(self, message: Prepare | StepPlan) -> None:
        """Send to each of them, in order."""
        ...

    def joined(self) -> Sequence[Joined]:
        """Wait until all have loaded the model."""
        ...

    def states(self) -> Sequence[tuple[int, RankState]]:
        """Return the states that have arrived since the last call, each with its rank."""
        ...


class AllRanks:
    """A `Backend` of several ranks. Raises RanksDisagree where they do."""

    def __init__(
        self,
        own: Backend,
        followers: Followers,
        clock: PlanClock,
        time_of: Callable[[], float] = time.monotonic,
        compared_steps: int = COMPARED_STEPS,
    ) -> None:
        """`own`: rank 0's back end, whose prefix cache reads `clock`. Waits until the others have loaded the
        model. Raise LoadRefused where one has loaded something else."""
        self._own = own
        self._followers = followers
        self._clock = clock
        self._time_of = time_of
        self._compared_steps = compared_steps
        others = followers.joined()
        self._ranks = 1 + len(others)
        _check_equal(own, others)
        self._rows: set[int] = set()
        self._prepared: set[int] = set()
        self._refused: tuple[int, ...] = ()
        self._slow: tuple[tuple[int, str], ...] = ()
        self._digest = Digest()
        self._steps = 0
        self._expected: dict[int, RankState] = {}
        """This rank's states by number, until all others have sent theirs."""
        self._missing: dict[int, int] = {}
        self._comparisons = 0

    @property
    def facts(self) -> BackendFacts:
        return self._own.facts

    @property
    def cache(self) -> Cache | None:
        """Return rank 0's cache: those of the others hold the same."""
        return self._own.cache

    @property
    def device(self) -> Readings:
        return self._own.device

    def describe(self) -> Ready:
        described: Ready = msgspec.structs.replace(self._own.describe(), ranks=self._ranks)
        return described

    def check(self, sequence: EngineSequence) -> None:
        self._own.check(sequence)

    def preparing(self, sequence: EngineSequence) -> bool:
        """Send the other ranks a sequence with a grammar, once: only that takes a while. They need not be
        asked whether they are done: each waits for itself when the sequence is admitted."""
        request_id = sequence.request_id
        if sequence.submit.grammar and request_id not in self._prepared:
            self._prepared.add(request_id)
            self._followers.send(Prepare(sequence.submit))
        return self._own.preparing(sequence)

    def execute(self, plan: StepPlan) -> StepResult:
        self._check_states()
        check_rows(plan, self._rows)
        if plan.computes:
            self._steps += 1
            if self._steps % self._compared_steps == 0:
                self._comparisons += 1
                plan = with_changes(plan, compare=self._comparisons)
            # Each rank measures other times: which rows they end is decided here, between two steps. Some may
            # leave with this very plan.
            staying = self._rows.difference(plan.release, plan.preempt)
            slow = tuple(end for end in self._slow if end[0] in staying)
            plan = with_changes(plan, end=(*plan.end, *slow))
            self._slow = ()
        plan = with_changes(plan, waits={})
        self._prepared.difference_update(plan.forget)
        if with_changes(plan, reason="idle") == _NOTHING:
            return self._own.execute(plan)
        if not plan.admit:
            return self._execute(plan)
        # A rank that refuses another sequence than rank 0 would meet the others in another collective.
        defaults = {name: getattr(_NOTHING, name) for name in _COMPUTED}
        first = self._execute(with_changes(plan, compare=0, **defaults))
        computed = {name: getattr(plan, name) for name in _COMPUTED}
        result = self._execute(StepPlan(**computed, compare=plan.compare))
        return replace(
            result,
            change_seconds=first.change_seconds + result.change_seconds,
            refused=first.refused,
            freed_bytes=first.freed_bytes,
            unpinned=first.unpinned,
        )

    def _execute(self, plan: StepPlan) -> StepResult:
        """Send the plan, and carry it out."""
        self._clock.now = self._time_of()
        plan = with_changes(plan, now=self._clock.now, refused=self._refused)
        self._followers.send(plan)
        result = self._own.execute(plan)
        self._refused = tuple(request_id for request_id, _ in result.refused)
        self._slow = result.slow
        self._rows.difference_update(plan.release, plan.preempt)
        admitted = {admit.sequence.request_id for admit in plan.admit}
        self._prepared -= admitted
        self._rows |= admitted.difference(self._refused)
        self._rows.difference_update(retired.request_id for retired in result.retired)
        self._digest.add(result)
        if plan.compare:
            self._expected[plan.compare] = self._digest.state(plan.compare, self._own, result)
            self._missing[plan.compare] = self._ranks - 1
        return result

    def _check_states(self) -> None:
        """Raise RanksDisagree if a state that has arrived is not this rank's. Each plan calls it."""
        for rank, state in self._followers.states():
            own = self._expected[state.number]
            if state != own:
                raise RanksDisagree(f"rank {rank} has computed {state}, rank 0 {own}")
            self._missing[state.number] -= 1
            if not self._missing[state.number]:
                del self._missing[state.number], self._expected[state.number]

    def background(self, idle: bool) -> bool:
        return self._own.background(idle)


def _check_equal(own: Backend, others: Sequence[Joined]) -> None:
    """Raise LoadRefused where another rank has loaded something else."""
    mine = joined(own)
    for rank, other in enumerate(others, 1):
        if (found := disagreement(mine, other)) is not None:
            raise LoadRefused(f"rank {rank} cannot belong to this engine: {found}")
