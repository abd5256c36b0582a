"""The ceiling of a step's prefill after a device timeout, and how it climbs back. Pure.

A system ends GPU work that takes too long (Metal's watchdog, or the window server's), and the process with
it. The server then halves the ceiling of the next engine (`scheduler/engine_bounds.py`). Here it climbs back
by a quarter after a number of chunks of its full size; the server learns it from the counters, so that the
next timeout halves what was tried last.
"""

from __future__ import annotations

from dataclasses import replace

from scheduler.engine.planning.prefill import PrefillLimits
from scheduler.shared.messages import Load

_FULL_PART = 7 / 8
"""The part of the ceiling from which a step counts as full: equal chunks leave less than a token a row of it,
and a row has at least eight (`prefill.py`)."""


class ChunkCeiling:
    """`whole_tokens`: `--prefill-chunk-tokens`. `tokens`: the ceiling of a step's rows times its longest
    chunk; 0 if no timeout has lowered it."""

    def __init__(self, whole_tokens: int, tokens: int = 0, climb_chunks: int = 1) -> None:
        self._whole_tokens = whole_tokens
        self._tokens = min(tokens, whole_tokens) if tokens > 0 else whole_tokens
        self._climb_chunks = climb_chunks
        self._full_chunks = 0

    @classmethod
    def of(cls, load: Load) -> ChunkCeiling:
        return cls(load.prefill_chunk_tokens, load.chunk_ceiling, load.climb_chunks)

    @property
    def tokens(self) -> int:
        return self._tokens

    def limits(self, limits: PrefillLimits) -> PrefillLimits:
        """Return these limits with the number of rows lowered in proportion to the ceiling."""
        if self._tokens == self._whole_tokens:
            return limits
        return replace(limits, rows=max(1, limits.rows * self._tokens // self._whole_tokens))

    def computed(self, tokens: int) -> None:
        """Count a step of this many prompt tokens, padding included, if it was about as large as the ceiling
        allows."""
        if self._tokens == self._whole_tokens or tokens < _FULL_PART * self._tokens:
            return
        self._full_chunks += 1
        if self._full_chunks >= self._climb_chunks:
            self._full_chunks = 0
            self._tokens = min(self._whole_tokens, max(self._tokens + 1, self._tokens * 5 // 4))
