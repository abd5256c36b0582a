"""What the engine loop needs of a model: the seam between our loop and mlx-lm.

Two implementations pass the same contract tests (`tests/contracts/check_backend.py`): `mlx_backend`
(the real one) and `scripted_backend` (tokens by arithmetic, for tests of everything around it).
"""

from __future__ import annotations

from collections import abc
from collections.abc import Container
from dataclasses import dataclass, field
from typing import Any, Protocol

from scheduler.engine.disk.disk_tier import DiskTier
from scheduler.engine.plan import Restorable
from scheduler.engine.prefill import Chunk, PrefillLimits
from scheduler.engine.prefix.prefix_cache import PrefixCache
from scheduler.engine.row_bytes import RowBytes
from scheduler.engine.sequence import Sequence
from scheduler.link.messages import DeviceMemory, PrefillOut, Ready, Retired, TokenOut


@dataclass(frozen=True, slots=True)
class StepResult:
    """What one step did. A row that ended has its last token in `tokens` and its end in `retired`."""

    tokens: abc.Sequence[TokenOut] = ()
    retired: abc.Sequence[Retired] = ()
    prefills: abc.Sequence[PrefillOut] = ()
    computed_prefill_tokens: int = 0
    """Prompt tokens computed, padding included."""
    decoded_rows: int = field(default=0, compare=False)
    """Rows of which a token was computed; with overlap the next step returns it."""
    prefill_seconds: float = field(default=0.0, compare=False)
    """Of the step's time, what the chunks took."""
    model_seconds: float = field(default=0.0, compare=False)
    """Of the step's time, what the model's evaluation took; the rest is bookkeeping around it."""


class DiskWatch(Protocol):
    """What is reported of the disk tier."""

    @property
    def tier(self) -> DiskTier: ...
    @property
    def disk_tokens(self) -> int: ...


class Backend(Protocol):
    """A running batch. One thread calls it; a row is known by its request id.

    It carries out plans and decides nothing. Of a sequence that it has admitted it alone writes `tokens`
    (each token that it returns), `computed_tokens`, `cached_tokens` and `in_place_tokens`.
    """

    def describe(self) -> Ready:
        """What was loaded."""
        ...

    @property
    def row_bytes(self) -> RowBytes:
        """What a row will hold."""
        ...

    @property
    def limits(self) -> PrefillLimits:
        """What one step's prefill can do."""
        ...

    @property
    def prefixes(self) -> PrefixCache[Any, Any] | None:
        """The prefix cache; None where none is kept. The back end alone changes it, except for `clear`."""
        ...

    @property
    def restorable(self) -> Restorable: ...

    @property
    def begun(self) -> Container[int]:
        """The rows in the middle of their prefill: each must have a chunk in every step."""
        ...

    @property
    def has_pending(self) -> bool:
        """Whether there are sampled tokens that no step has returned yet."""
        ...

    def check(self, sequence: Sequence) -> None:
        """Raises RequestRefused for what could break in the batch or index outside of an array."""
        ...

    def preparing(self, sequence: Sequence) -> bool:
        """Whether a waiting sequence has unfinished prerequisites: a disk read, a grammar that is being
        compiled. Raises RequestRefused where it turns out that it cannot run."""
        ...

    def forget(self, sequence: Sequence) -> None:
        """A waiting sequence was cancelled or refused."""
        ...

    def admit(self, sequence: Sequence) -> None:
        """Give it a row, with its prefix hit. Raises RequestRefused, with nothing changed."""
        ...

    def keep(self, request_id: int, tokens: int) -> None:
        """Put the first `tokens` computed tokens of a running row where others find them."""
        ...

    def remove(self, request_id: int) -> None:
        """Take the row out of the batch now and free its cache; unknown ids are an error (KeyError). What was
        computed is kept in the prefix cache."""
        ...

    def emit_pending(self) -> StepResult:
        """Return the tokens that are sampled already, and compute nothing."""
        ...

    def step(self, chunks: abc.Sequence[Chunk] = ()) -> StepResult:
        """Compute these chunks, and one token of each row whose prompt is whole by then.

        A row ends by itself at one of its stop tokens or at its `max_tokens`. What breaks in one row alone
        ends that row as "failed": an exception from here means that the whole batch is lost.
        """
        ...

    def background(self, idle: bool) -> bool:
        """One slice of background work, which no step waits for. Whether there is more of it."""
        ...

    @property
    def disk(self) -> DiskWatch | None:
        """The disk tier, to be reported."""
        ...

    def kv_bytes(self) -> int:
        """Bytes of KV cache held by all rows; 0 when there are none."""
        ...

    def memory(self) -> DeviceMemory:
        """What the device's allocator holds. Asked in every step, so it costs next to nothing."""
        ...
