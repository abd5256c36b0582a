"""The interface between the engine loop and a model: a plan in, a result out.

All implementations pass the same contract tests (`tests/contracts/check_backend.py`): `mlx/backend.py`,
and `scripted_backend.py` (tokens by arithmetic, for tests of everything around it); `mlx/pooling/backend.py`
passes those for vectors (`check_vectors.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import msgspec

from scheduler.engine.budget.limits import MemoryLimit
from scheduler.engine.device import Readings, Traits
from scheduler.engine.drafts.speculation import DraftTokens
from scheduler.engine.plan import Restorable, StepPlan
from scheduler.engine.planning.prefill import PrefillLimits
from scheduler.engine.planning.prefill_batches import Begun
from scheduler.engine.prefix.holds import NO_CACHE
from scheduler.engine.prefix.prefix_cache import PrefixCache
from scheduler.engine.sequence import EngineSequence
from scheduler.errors import RequestRefused
from scheduler.shared.adapter_files import AdapterRefused, named, salted
from scheduler.shared.messages import (
    MAX_TOP_LOGPROBS,
    AdapterSource,
    DiskCounters,
    Load,
    PrefillOut,
    PromptLogprobsOut,
    Ready,
    Retired,
    Submit,
    TokenOut,
)
from scheduler.shared.row_bytes import RowBytes

_ANY_TOKENS = 1 << 40
"""More than a prompt ever has."""


@dataclass(frozen=True, slots=True)
class StepResult:
    """The result of one step. A row that ended has its last token in `tokens` and its reason in `retired`,
    with its vector where it asked for one. A row with drafts has several tokens, in order: the accepted ones,
    and the one drawn behind them."""

    tokens: Sequence[TokenOut] = ()
    retired: Sequence[Retired] = ()
    prefills: Sequence[PrefillOut] = ()
    computed_prefill_tokens: int = 0
    """Prompt tokens computed, padding included."""
    decoded_rows: int = field(default=0, compare=False)
    """Rows for which a token was computed; with overlap the next step returns it."""
    prefill_seconds: float = field(default=0.0, compare=False)
    """The part of the step's time that the chunks took."""
    prompt_logprobs: Sequence[PromptLogprobsOut] = ()
    change_seconds: float = field(default=0.0, compare=False)
    """What the plan's changes took, before the model's step."""
    refused: tuple[tuple[int, str], ...] = ()
    """Sequences of `StepPlan.admit` that cannot run, and why: nothing of them is left."""
    freed_bytes: int = 0
    """Bytes that `StepPlan.clear` freed."""
    evicted_bytes: int = 0
    """Bytes that `StepPlan.evict` freed."""
    begun: Begun = field(default=(), compare=False)
    """The batches in the middle of their prefill: a step with chunks computes one of them, or begins another,
    and each of its rows has a chunk."""
    has_pending: bool = field(default=False, compare=False)
    """Whether there are sampled tokens that no step has returned yet (overlap)."""
    forced: DraftTokens = field(default_factory=dict, compare=False)
    """What `StepPlan.foresee` asks for: the tokens that a row's grammar forces next, from its first token
    that is not returned yet."""
    kv_bytes: int = field(default=0, compare=False)
    """Bytes of KV cache held by all rows; 0 when there are none."""


@dataclass(frozen=True, slots=True)
class BackendFacts:
    """What stays as it is while the back end lives."""

    row_bytes: RowBytes
    """Bytes of a row's KV cache, by its tokens."""
    limits: PrefillLimits
    """Limits of one step's prefill."""
    restorable: Restorable
    memory_limit: MemoryLimit
    """All that it may use, as loaded."""
    traits: Traits
    verified_tokens: int = 0
    """Bound on a step's rows with drafts times the tokens computed of each; 0 if it verifies no drafts."""
    group_cost_tokens: int | None = None
    """Tokens of keys and values that one more group of rows must save to be attended to in place; None where
    rows have copies of what is cached, and `StepPlan.saving` has no effect."""

    @property
    def verifies(self) -> bool:
        return self.verified_tokens > 0


@dataclass(frozen=True, slots=True)
class Cache:
    """What is cached beside the rows, to be read only."""

    prefixes: PrefixCache[Any, Any]
    disk: Callable[[], DiskCounters | None] = lambda: None
    """Returns what the disk tier counts, once it is open."""


class Backend(Protocol):
    """A running batch. One thread calls it; a row is known by its request id.

        result = backend.execute(StepPlan(admit=(Admit(sequence),), chunks=(Chunk(1, 8),)))
        while not result.retired:  # and `result.tokens` has the answer's, one after the other
            result = backend.execute(StepPlan(decode=(1,)))

    It carries out plans and decides nothing. It alone writes `tokens` (each token that it returns),
    `computed_tokens`, `cached_tokens`, `in_place_tokens` and `scored_tokens` of a sequence that it has
    admitted.
    """

    @property
    def facts(self) -> BackendFacts: ...

    @property
    def cache(self) -> Cache | None:
        """Return the prefix cache, or None."""
        ...

    @property
    def device(self) -> Readings: ...

    def describe(self) -> Ready:
        """Return what was loaded."""
        ...

    def check(self, sequence: EngineSequence) -> None:
        """Raise RequestRefused for what could fail inside the batch or index outside an array."""
        ...

    def preparing(self, sequence: EngineSequence) -> bool:
        """Return whether a waiting sequence has unfinished prerequisites: a disk read, a grammar being
        compiled. The first call starts them. Raise RequestRefused if it cannot run."""
        ...

    def execute(self, plan: StepPlan) -> StepResult:
        """Carry out the plan, in the order of its fields; chunks and decoded rows of refused sequences are
        passed over.

        A row ends by itself at a stop token or at its `max_tokens`. A failure of one row retires that row as
        "failed". An exception from here means that the whole batch is lost.
        """
        ...

    def background(self, idle: bool) -> bool:
        """Do one slice of background work, which no step waits for. Return whether there is more."""
        ...


def check_logprobs(submit: Submit) -> None:
    """Raise RequestRefused for more alternatives than a step computes."""
    for name, top in (("top_logprobs", submit.top_logprobs), ("prompt_logprobs", submit.prompt_logprobs)):
        if top is not None and not 0 <= top <= MAX_TOP_LOGPROBS:
            raise RequestRefused(f"{name} must be 0 to {MAX_TOP_LOGPROBS}, not {top}")


def loaded_adapters(
    sources: Sequence[AdapterSource], read: Callable[[AdapterSource], None]
) -> tuple[tuple[str, str], ...]:
    """Let `read` load each adapter, or raise AdapterRefused. Return `Ready.refused_adapters`."""
    refused: list[tuple[str, str]] = []
    for source in sources:
        try:
            with named(source.name):
                read(source)
        except AdapterRefused as error:
            refused.append((source.key, str(error)))
    return tuple(refused)


def take_holds(prefixes: PrefixCache[Any, Any] | None, sequence: EngineSequence) -> None:
    """Hold the prefixes that a request asks for, as far as they are cached, and note a refusal in
    `hold_refusal`; once more when the row has ended, since a prompt's last token is computed apart. Without
    `prefixes`, all are refused."""
    refusals = list[str]()
    for length, seconds in sequence.submit.holds:
        if prefixes is None:
            refusals.append(NO_CACHE)
        else:
            refusals.append(prefixes.hold(sequence.tokens[:length], sequence.submit.salt, seconds))
    sequence.hold_refusal = next(filter(None, refusals), "")


def changed(prefixes: PrefixCache[Any, Any], plan: StepPlan) -> int:
    """Carry out the part of a plan that is about the prefix cache, but for what rows put into it. Return the
    bytes freed by `clear`."""
    if plan.budget is not None and plan.budget.kv_bytes is not None:
        prefixes.set_budget(plan.budget.kv_bytes)
    for turn in plan.ended:
        prefixes.ended(salted(turn.adapter, turn.salt), turn.session, turn.kind)
    return prefixes.clear() if plan.clear else 0


def started(backend: Backend, load: Load) -> Ready:
    """Return what the back end describes, whether drafts are verified, and the longest prompt."""
    facts, most = backend.facts, 0
    if backend.cache is not None:
        most = facts.row_bytes.fitting_tokens(facts.memory_limit.most_kv_bytes, _ANY_TOKENS)
    ready: Ready = msgspec.structs.replace(
        backend.describe(),
        verifies=facts.verifies and load.speculation != "none",
        most_prompt_tokens=most,
    )
    return ready
