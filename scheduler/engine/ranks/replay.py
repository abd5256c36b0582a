"""Makes rank 0's calls on this rank's back end, and keeps the state that ranks compare.

Without I/O: `follower.py` reads the calls from a socket, tests hand them over.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from hashlib import blake2b
from typing import Protocol, assert_never, runtime_checkable

import msgspec

from scheduler.engine.backend import Backend, StepResult
from scheduler.engine.ranks.calls import (
    Admit,
    Call,
    Clear,
    ClearPool,
    Compare,
    EmitPending,
    EndRow,
    EndTurn,
    Evict,
    Forget,
    Heard,
    Joined,
    Keep,
    LimitPool,
    LimitScores,
    Prepare,
    Refused,
    Remove,
    SaveMemory,
    SetBudget,
    Start,
    State,
    Step,
    Told,
    Unpin,
)
from scheduler.engine.sequence import RequestRefused, Sequence


class RanksDisagree(Exception):
    """Equal calls had different results. The engine cannot go on: its ranks compute different requests."""


@runtime_checkable
class EndsRows(Protocol):
    """A back end with grammars, whose masks' time ends rows on rank 0's word only."""

    def slow_rows(self) -> dict[int, str]:
        """The rows that are to end, and why."""
        ...

    def end_row(self, request_id: int, reason: str) -> None:
        """The row's next step retires it as failed."""
        ...


class ToldClock:
    """Rank 0's time at its last call, on every rank, in seconds."""

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
        self._hash.update(self._encoder.encode((tokens, ends, prefills)))

    def state(self, number: int, backend: Backend) -> State:
        prefixes = backend.prefixes
        held, budget = (0, 0) if prefixes is None else (prefixes.nbytes, prefixes.budget_bytes)
        return State(number, self._hash.hexdigest(), held, budget, backend.kv_bytes())


def joined(backend: Backend) -> Joined:
    """Describe a rank's loaded back end. Where ranks differ in one of these they would compute other tokens,
    or evict other prefixes."""
    ready = backend.describe()
    facts = {
        "device": ready.device,
        "ways to compute": str(backend.device.traits),
        "model type": ready.model_type,
        "vocabulary": str(ready.vocabulary),
        "weights' dtype": ready.weights_dtype,
        "fallbacks": ", ".join(ready.fallbacks) or "none",
        "bytes of a row": str(backend.row_bytes),
        "prefix cache": "none" if backend.prefixes is None else backend.restorable,
        "prefill limits": str(backend.limits),
        "bytes of the KV budget": str(0 if backend.prefixes is None else backend.prefixes.budget_bytes),
    }
    return Joined(facts)


def disagreement(own: Joined, other: Joined) -> str | None:
    """Return which fact of another rank differs from rank 0's; None: none does."""
    for name, value in own.facts.items():
        if (found := other.facts.get(name)) != value:
            return f"its {name} is {found!r}, rank 0's {value!r}"
    return None


@dataclass(slots=True)
class _Refusal:
    request_id: int
    reason: str


class Replay:
    """`apply` in the order in which rank 0 told the calls."""

    def __init__(self, backend: Backend, clock: ToldClock, answer: Callable[[State], None]) -> None:
        self._backend = backend
        self._clock = clock
        self._answer = answer
        self._digest = Digest()
        self._waiting: dict[int, Sequence] = {}
        """Those that are prepared, by request id."""
        self._refusal: _Refusal | None = None
        """Of the last call, which rank 0 must have refused as well."""

    def apply(self, told: Told) -> None:
        """Raises RanksDisagree, and what the back end raises, after which this rank cannot go on."""
        self._clock.now = told.now
        self._compare_refusals(told.call)
        self._make(told.call)

    def _compare_refusals(self, call: Call) -> None:
        own, self._refusal = self._refusal, None
        rank_0s = call.request_id if isinstance(call, Refused) else None
        if own is not None and own.request_id != rank_0s:
            raise RanksDisagree(f"request {own.request_id} was refused here only: {own.reason}")
        if own is None and rank_0s is not None:
            raise RanksDisagree(f"request {rank_0s} was refused by rank 0 only")

    def _make(self, call: Call) -> None:
        backend = self._backend
        match call:
            case Prepare(submit=submit):
                self._waiting[submit.request_id] = Sequence.of(submit)
                backend.preparing(self._waiting[submit.request_id])
            case Forget(request_id=request_id):
                backend.forget(self._waiting.pop(request_id))
            case Admit():
                self._admit(call)
            case Refused():
                pass
            case Keep(request_id=request_id, tokens=tokens):
                backend.keep(request_id, tokens)
            case Remove(request_id=request_id):
                backend.remove(request_id)
            case EndRow(request_id=request_id, reason=reason):
                if not isinstance(backend, EndsRows):
                    raise RanksDisagree("rows here have no grammars")
                backend.end_row(request_id, reason)
            case SaveMemory(saving=saving):
                backend.save_memory(saving)
            case EmitPending():
                self._digest.add(backend.emit_pending())
            case Step(predicted_seconds=predicted_seconds):
                self._digest.add(backend.step(call.as_chunks(), predicted_seconds))
            case SetBudget() | Evict() | Clear() | EndTurn() | Unpin():
                self._change_prefixes(call)
            case LimitPool(most_bytes=most_bytes):
                backend.device.limit_pool(most_bytes)
            case LimitScores(most_bytes=most_bytes):
                backend.device.limit_scores(most_bytes)
            case ClearPool():
                backend.device.clear_pool()
            case Compare(number=number):
                self._answer(self._digest.state(number, backend))
            case Start() | Heard():
                raise RanksDisagree(f"{type(call).__name__} after the model was loaded")
            case _:
                assert_never(call)

    def _admit(self, call: Admit) -> None:
        self._waiting.pop(call.submit.request_id, None)
        try:
            self._backend.admit(call.sequence())
        except RequestRefused as refusal:
            self._refusal = _Refusal(call.submit.request_id, str(refusal))

    def _change_prefixes(self, call: SetBudget | Evict | Clear | EndTurn | Unpin) -> None:
        if (prefixes := self._backend.prefixes) is None:
            raise RanksDisagree("there is no prefix cache here")
        match call:
            case SetBudget(budget_bytes=budget_bytes):
                prefixes.set_budget(budget_bytes)
            case Evict(need=need):
                prefixes.evict(need)
            case Clear():
                prefixes.clear()
            case EndTurn(salt=salt, session=session, kind=kind):
                prefixes.ended(salt, session, kind)
            case Unpin(name=name):
                prefixes.unpin(name)
