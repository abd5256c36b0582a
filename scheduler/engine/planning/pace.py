"""The prefill budget: how many prompt tokens a step may compute without exceeding the ITL target of decoding
rows.

Learned from the running engine, never configured: seconds of a decode step by its rows, and of a prefill
chunk by its tokens and their context, each a line fitted to the latest steps.
"""

from __future__ import annotations

import math
from collections import deque
from dataclasses import dataclass, field

from scheduler.engine.planning.fitted_line import FittedLine
from scheduler.engine.planning.prefill import LEAST_CHUNK_TOKENS
from scheduler.shared.messages import StepCosts

_TRIED_CHUNKS = 4
"""One in four of the chunks at the floor is twice as large: chunks of one size cannot separate the cost of a
token from that of every chunk, and a device that is fast again would stay at the floor."""
AUTOMATIC_RATIO = 3.5
"""Applies without a target in seconds: a step with prefill may take 3.5 times a decode step of all rows,
those in prefill included, which decode soon. Prefill then has 5/7 of the time, so that a long prompt takes
1.4 times what it would take alone, plus the overhead of small chunks."""
_FIRST_TOKENS = 64
_MOST_GROWTH = 2
"""A chunk has at most twice the tokens of the latest ones. After many small chunks of a long context, what a
token costs without context is not known: it may seem to cost nothing, and 2,048 of them took ten times the
target."""
_LATEST = 32
"""Chunks that the line still remembers: the first of them counts a tenth."""
_ROWS = 32
_TOKENS = 64
_TOKENS_CONTEXT = 1 << 18


def _rows(rows: int) -> tuple[float, ...]:
    """Return the factors of a decode step, the constant first: larger batches than observed are not expected
    to be slower."""
    return 1.0, rows / _ROWS


def _chunk(tokens: int, context: int) -> tuple[float, ...]:
    """Return the factors of a chunk, scaled so that the terms are of similar size. The tokens come first: the
    time of a single chunk is attributed to its tokens, so that the next one is not too large."""
    return tokens / _TOKENS, tokens * context / _TOKENS_CONTEXT, 1.0


@dataclass(slots=True)
class PrefillPace:
    """Without `target_seconds`, the target is AUTOMATIC_RATIO times the decode step."""

    most_tokens: int
    """Budget of a step in which no row decodes: the device computes large chunks best."""
    target_seconds: float | None = None
    _decode: FittedLine = field(default_factory=lambda: FittedLine(2))
    _prefill: FittedLine = field(default_factory=lambda: FittedLine(3))
    _latest: deque[int] = field(default_factory=lambda: deque(maxlen=_LATEST))
    """Tokens of the latest chunks."""
    _least_chunks: int = 0

    def budget(self, decoding: int, prefilling: int, context: int) -> int:
        """Return how many prompt tokens the next step may compute, with `decoding` rows and `prefilling`
        prompts that will decode. Of all prompts the furthest has `context` tokens in its cache."""
        if decoding == 0:
            return self.most_tokens
        target = self.step_target_seconds(decoding + prefilling)
        if target is None or not self._prefill:
            return min(_FIRST_TOKENS, self.most_tokens)
        left = target - self._decode.cost(_rows(decoding)) - self._prefill.cost(_chunk(0, context))
        token = self._prefill.cost(_chunk(1, context)) - self._prefill.cost(_chunk(0, context))
        most = min(self.most_tokens, _MOST_GROWTH * max(self._latest))
        # Chunks of one size may say that a token costs nothing, also when none fits.
        fitting = int(min(most, left / token if token else math.inf)) if left > 0 else 0
        if fitting < LEAST_CHUNK_TOKENS:
            larger = self._least_chunks % _TRIED_CHUNKS == _TRIED_CHUNKS - 1
            return 2 * LEAST_CHUNK_TOKENS if larger else LEAST_CHUNK_TOKENS
        return fitting

    def step_target_seconds(self, rows: int) -> float | None:
        """Return the bound on a step while this many rows wait for a token, or None while unknown."""
        if not self._decode:
            return None
        if self.target_seconds is not None:
            return self.target_seconds
        return AUTOMATIC_RATIO * self._decode.cost(_rows(rows))

    def step_seconds(self, decoding: int, chunk_tokens: int, context: int) -> float | None:
        """Return the predicted time of a step with this many rows and prompt tokens; None while unknown."""
        if (decoding and not self._decode) or (chunk_tokens and not self._prefill):
            return None
        seconds = self._decode.cost(_rows(decoding)) if decoding else 0.0
        return seconds + (self._prefill.cost(_chunk(chunk_tokens, context)) if chunk_tokens else 0.0)

    def observe_decode(self, seconds: float, rows: int) -> None:
        if seconds > 0 and rows:  # With a virtual clock a step takes no time.
            self._decode.learn(seconds, _rows(rows))

    def observe_prefill(self, seconds: float, tokens: int, context: int) -> None:
        """Learn from the prefill of a step. `tokens`: padding included."""
        if seconds > 0 and tokens:
            self._least_chunks += tokens <= 2 * LEAST_CHUNK_TOKENS
            self._prefill.learn(seconds, _chunk(tokens, context))
            self._latest.append(tokens)

    def costs(self) -> StepCosts:
        """Return what has been learned, for the server."""
        step, row = self._decode.terms
        token, token_context, chunk = self._prefill.terms
        return StepCosts(step, row / _ROWS, chunk, token / _TOKENS, token_context / _TOKENS_CONTEXT)
