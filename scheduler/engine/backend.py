"""The interface between the engine loop and a model.

Two implementations pass the same contract tests (`tests/contracts/check_backend.py`): `mlx/backend.py`
(the real one) and `scripted_backend.py` (tokens by arithmetic, for tests of everything around it).
"""

from __future__ import annotations

from collections import abc
from collections.abc import Container
from dataclasses import dataclass, field
from typing import Protocol

import msgspec

from scheduler.engine.adapter_files import AdapterRefused
from scheduler.engine.device import Device
from scheduler.engine.disk.disk_tier import DiskTier
from scheduler.engine.memory_limit import MemoryLimit
from scheduler.engine.plan import Restorable
from scheduler.engine.prefill import Chunk, PrefillLimits
from scheduler.engine.prefix.prefixes import Prefixes
from scheduler.engine.row_bytes import RowBytes
from scheduler.engine.sequence import RequestRefused, Sequence
from scheduler.link.messages import (
    MAX_TOP_LOGPROBS,
    AdapterSource,
    Load,
    PrefillOut,
    PromptLogprobsOut,
    Ready,
    Retired,
    Submit,
    TokenOut,
)


@dataclass(frozen=True, slots=True)
class StepResult:
    """The result of one step. A row that ended has its last token in `tokens` and its reason in `retired`,
    with its vector where it asked for one."""

    tokens: abc.Sequence[TokenOut] = ()
    retired: abc.Sequence[Retired] = ()
    prefills: abc.Sequence[PrefillOut] = ()
    computed_prefill_tokens: int = 0
    """Prompt tokens computed, padding included."""
    decoded_rows: int = field(default=0, compare=False)
    """Rows for which a token was computed; with overlap the next step returns it."""
    prefill_seconds: float = field(default=0.0, compare=False)
    """The part of the step's time that the chunks took."""
    model_seconds: float = field(default=0.0, compare=False)
    """The part of the step's time that the model took; the rest is bookkeeping."""
    prompt_logprobs: abc.Sequence[PromptLogprobsOut] = ()


def check_logprobs(submit: Submit) -> None:
    """Raises RequestRefused for more alternatives than a step computes."""
    for name, top in (("top_logprobs", submit.top_logprobs), ("prompt_logprobs", submit.prompt_logprobs)):
        if top is not None and not 0 <= top <= MAX_TOP_LOGPROBS:
            raise RequestRefused(f"{name} must be 0 to {MAX_TOP_LOGPROBS}, not {top}")


def started(backend: Backend, load: Load) -> Ready:
    """Load the adapters of `load`, and return what the back end describes then."""
    refused = []
    for source in load.adapters:
        try:
            backend.load_adapter(source)
        except AdapterRefused as error:
            refused.append((source.key, str(error)))
    ready: Ready = msgspec.structs.replace(backend.describe(), refused_adapters=tuple(refused))
    return ready


class DiskWatch(Protocol):
    """The disk tier, as reported to operators."""

    @property
    def tier(self) -> DiskTier: ...
    @property
    def disk_tokens(self) -> int: ...


class Backend(Protocol):
    """A running batch. One thread calls it; a row is known by its request id.

    It carries out plans and decides nothing. It alone writes `tokens` (each token that it returns),
    `computed_tokens`, `cached_tokens`, `in_place_tokens` and `scored_tokens` of a sequence that it has
    admitted.
    """

    def describe(self) -> Ready:
        """What was loaded."""
        ...

    @property
    def row_bytes(self) -> RowBytes:
        """Bytes of a row's KV cache, by its tokens."""
        ...

    @property
    def limits(self) -> PrefillLimits:
        """Limits of one step's prefill."""
        ...

    @property
    def prefixes(self) -> Prefixes | None:
        """The prefix cache, or None. Besides the back end only its budget is changed, and it is evicted."""
        ...

    @property
    def restorable(self) -> Restorable: ...

    @property
    def begun(self) -> Container[int]:
        """The rows whose prefill has begun: each must have a chunk in every step."""
        ...

    @property
    def has_pending(self) -> bool:
        """Whether there are sampled tokens that no step has returned yet (overlap)."""
        ...

    def check(self, sequence: Sequence) -> None:
        """Raises RequestRefused for what could fail inside the batch or index outside an array."""
        ...

    def load_adapter(self, source: AdapterSource) -> None:
        """Load a LoRA adapter, for the sequences that name it. Raises AdapterRefused, with nothing
        changed."""
        ...

    def unload_adapter(self, key: str) -> None:
        """Free an adapter that no sequence has."""
        ...

    def preparing(self, sequence: Sequence) -> bool:
        """Whether a waiting sequence has unfinished prerequisites: a disk read, a grammar being compiled.
        The first call starts them. Raises RequestRefused if it cannot run."""
        ...

    def forget(self, sequence: Sequence) -> None:
        """A waiting sequence was cancelled or refused."""
        ...

    def admit(self, sequence: Sequence) -> None:
        """Add a row, with its prefix hit. Raises RequestRefused, with nothing changed."""
        ...

    def keep(self, request_id: int, tokens: int) -> None:
        """Put the first `tokens` computed tokens of a running row into the prefix cache."""
        ...

    def remove(self, request_id: int) -> None:
        """Remove the row from the batch and free its cache. What was computed goes to the prefix cache.
        Raises KeyError for unknown ids."""
        ...

    def save_memory(self, saving: bool) -> bool:
        """While `saving`, let rows attend in place to all that is cached of them, whatever time that costs.
        Returns whether they do from now on."""
        ...

    def emit_pending(self) -> StepResult:
        """Return the tokens that are already sampled, and compute nothing."""
        ...

    def step(self, chunks: abc.Sequence[Chunk] = (), predicted_seconds: float | None = None) -> StepResult:
        """Compute these chunks, then one token of each row whose prompt is complete. `predicted_seconds`: of
        the whole step; None: not known.

        A row ends by itself at a stop token or at its `max_tokens`. A failure of one row retires that row as
        "failed"; an exception from here means that the whole batch is lost.
        """
        ...

    def background(self, idle: bool) -> bool:
        """Do one slice of background work, which no step waits for. Returns whether there is more."""
        ...

    @property
    def disk(self) -> DiskWatch | None:
        """The disk tier, or None."""
        ...

    def kv_bytes(self) -> int:
        """Bytes of KV cache held by all rows; 0 when there are none."""
        ...

    @property
    def device(self) -> Device: ...

    @property
    def memory_limit(self) -> MemoryLimit:
        """All that it may use, as loaded."""
        ...
