"""Carries out rank 0's plans on this rank's back end, and keeps the state that ranks compare.

Without I/O: `follower.py` reads the plans from a socket, tests hand them over.
"""

from __future__ import annotations

from collections.abc import Callable
from hashlib import blake2b
from typing import assert_never

import msgspec

from scheduler.engine.backend import Backend, StepResult
from scheduler.engine.plan import StepPlan
from scheduler.engine.ranks.messages import Joined, LoadReports, Prepare, RankState, Start, ToRank
from scheduler.engine.sequence import EngineSequence


class RanksDisagree(Exception):
    """Equal plans had different results. The engine cannot continue: its ranks compute different requests."""


class PlanClock:
    """The time of the last plan, by which the prefix caches of all ranks age, in seconds."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


class Digest:
    """A hash of everything that steps returned and that must be the same on every rank."""

    def __init__(self) -> None:
        self._hash = blake2b(digest_size=8)
        self._encoder = msgspec.msgpack.Encoder()

    def add(self, result: StepResult) -> None:
        tokens = [(out.request_id, out.token) for out in result.tokens]
        ends = [(end.request_id, end.reason) for end in result.retired]
        prefills = [(out.request_id, out.done, out.cached) for out in result.prefills]
        if tokens or ends or prefills:
            self._hash.update(self._encoder.encode((tokens, ends, prefills)))

    def state(self, number: int, backend: Backend, result: StepResult) -> RankState:
        """Return the state of a rank. `result`: that of the last plan."""
        held, budget = 0, 0
        if (cache := backend.cache) is not None:
            held, budget = cache.prefixes.nbytes, cache.prefixes.budget_bytes
        return RankState(number, self._hash.hexdigest(), held, budget, result.kv_bytes)


def joined(backend: Backend) -> Joined:
    """Describe a rank's loaded back end. Where ranks differ in one of these they would compute other tokens,
    or evict other prefixes."""
    ready, facts, cache = backend.describe(), backend.facts, backend.cache
    return Joined(
        {
            "device": ready.device,
            "ways to compute": str(facts.traits),
            "model type": ready.model_type,
            "vocabulary": str(ready.vocabulary),
            "weights' dtype": ready.weights_dtype,
            "KV cache dtype": ready.kv_cache_dtype,
            "fallbacks": ", ".join(ready.fallbacks) or "none",
            "bytes of a row": str(facts.row_bytes),
            "prefix cache": "none" if cache is None else facts.restorable,
            "prefill limits": str(facts.limits),
            "bytes of the KV budget": str(0 if cache is None else cache.prefixes.budget_bytes),
        }
    )


def disagreement(own: Joined, other: Joined) -> str | None:
    """Return which fact of another rank differs from rank 0's, or None if none does."""
    for name, value in own.facts.items():
        if (found := other.facts.get(name)) != value:
            return f"its {name} is {found!r}, rank 0's {value!r}"
    return None


class OtherRank:
    """A rank other than 0. Call `carry_out` in the order in which rank 0 sent the messages."""

    def __init__(self, backend: Backend, clock: PlanClock, answer: Callable[[RankState], None]) -> None:
        self._backend = backend
        self._clock = clock
        self._answer = answer
        self._digest = Digest()
        self._refused: dict[int, str] = {}
        """Requests that the last plan refused: rank 0 must have refused them as well."""

    def carry_out(self, message: ToRank) -> None:
        """Carry out a message. Raise RanksDisagree, and what the back end raises, after which this rank
        cannot continue."""
        match message:
            case StepPlan():
                self._execute(message)
            case Prepare(submit=submit):
                self._backend.preparing(EngineSequence.of(submit))
            case Start() | LoadReports():
                raise RanksDisagree(f"{type(message).__name__} after the model was loaded")
            case _:
                assert_never(message)

    def _execute(self, plan: StepPlan) -> None:
        self._clock.now = plan.now
        self._compare_refusals(plan.refused)
        result = self._backend.execute(plan)
        self._refused = dict(result.refused)
        self._digest.add(result)
        if plan.compare:
            self._answer(self._digest.state(plan.compare, self._backend, result))

    def _compare_refusals(self, rank_0s: tuple[int, ...]) -> None:
        for request_id in rank_0s:
            if request_id not in self._refused:
                raise RanksDisagree(f"request {request_id} was refused by rank 0 only")
        for request_id, reason in self._refused.items():
            if request_id not in rank_0s:
                raise RanksDisagree(f"request {request_id} was refused here only: {reason}")
