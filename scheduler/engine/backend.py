"""What the engine loop needs of a model: the seam between our loop and mlx-lm.

Two implementations pass the same contract tests (`tests/contracts/check_backend.py`): `mlx_backend`
(the real one) and `scripted_backend` (tokens by arithmetic, for tests of everything around it).
"""

from __future__ import annotations

from collections import abc
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol, TypeAlias

from scheduler.engine.disk.disk_tier import DiskTier
from scheduler.engine.prefix.prefix_cache import PrefixCache
from scheduler.engine.row_bytes import RowBytes
from scheduler.engine.sequence import Sequence
from scheduler.link.messages import DeviceMemory, PrefillOut, Ready, Retired, TokenOut

Restorable: TypeAlias = Literal["anywhere", "at_stops", "never"]
"""Where a prompt can be continued by another: after any token, where a state was kept, or nowhere (no
prefixes are kept)."""


class RequestRefused(Exception):
    """This request can never run here; the message is for the client."""


@dataclass(frozen=True, slots=True)
class StepResult:
    """What one step did. A row that ended has its last token in `tokens` and its end in `retired`."""

    tokens: abc.Sequence[TokenOut] = ()
    retired: abc.Sequence[Retired] = ()
    prefills: abc.Sequence[PrefillOut] = ()
    computed_prefill_tokens: int = 0
    """Prompt tokens computed, what was padded included."""
    decoded_rows: int = field(default=0, compare=False)
    """Rows of which a token was computed; it may be told by the next step."""
    prefill_seconds: float = field(default=0.0, compare=False)
    """Of the step's time, what these took."""
    model_seconds: float = field(default=0.0, compare=False)
    """Of the step's time, what the model's evaluation took; the rest is bookkeeping around it."""


class DiskWatch(Protocol):
    """What is reported of the disk tier."""

    @property
    def tier(self) -> DiskTier: ...
    @property
    def disk_tokens(self) -> int: ...


class Backend(Protocol):
    """A running batch. One thread calls it; a row is known by its request id."""

    def describe(self) -> Ready:
        """What was loaded."""
        ...

    @property
    def row_bytes(self) -> RowBytes:
        """What a row will hold."""
        ...

    @property
    def prefixes(self) -> PrefixCache[Any, Any] | None:
        """What is kept of prompts and answers; None where nothing is. The back end alone changes it,
        except for `clear`."""
        ...

    @property
    def restorable(self) -> Restorable: ...

    def admit(self, sequence: Sequence) -> int:
        """Join the running batch with the next step. How many tokens of its prompt were there already.

        Raises RequestRefused, with nothing changed."""
        ...

    def in_place_tokens(self, request_id: int) -> int:
        """How much of a running row lies in the prefix cache only, pinned there."""
        ...

    def keep(self, request_id: int, tokens: int) -> None:
        """Put the first `tokens` computed tokens of a running row where others find them."""
        ...

    def warming(self, sequence: Sequence) -> bool:
        """Whether a waiting request should wait on: what is kept of its prompt is being read from disk, or
        its grammar is being compiled."""
        ...

    def forget(self, sequence: Sequence) -> None:
        """A waiting request was cancelled or refused."""
        ...

    def tend(self, idle: bool) -> bool:
        """A little work that no step waits for. Whether there is more of it."""
        ...

    @property
    def disk(self) -> DiskWatch | None:
        """The disk tier, to be reported."""
        ...

    def remove(self, request_id: int) -> None:
        """Leave the batch now and free the row's cache; unknown ids are an error (KeyError). What was
        computed is kept for whoever asks again."""
        ...

    def step(self, prefill_tokens: int | None = None) -> StepResult:
        """One token for each decoding row, and at most `prefill_tokens` prompt tokens, which all rows in
        prefill share (None: a chunk for each of them).

        A row ends by itself at one of its stop tokens or at its `max_tokens`. What could break in one row
        alone is refused at admission: an exception from here means that the whole batch is lost.
        """
        ...

    def kv_bytes(self) -> int:
        """Bytes of key-value cache held by all rows; 0 when there are none."""
        ...

    def memory(self) -> DeviceMemory:
        """What the device's allocator holds. Asked in every step, so it costs next to nothing."""
        ...
