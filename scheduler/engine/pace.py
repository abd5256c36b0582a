"""The prefill budget: how many prompt tokens a step may compute without exceeding the ITL target of decoding
rows.

Learned from the running engine, never configured: seconds of a decode step by its rows, and of a prefill
chunk by its tokens and their context, each a line fitted to the latest steps.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from operator import mul
from typing import Literal, TypeAlias

LEAST_TOKENS = 8
"""The floor, whatever the target: a prefill that never ends is worse than a late token."""
AUTOMATIC_RATIO = 3.5
"""Without a target in seconds: a step with prefill may take 3.5 times a decode step of all rows, those in
prefill included, which decode soon. Prefill then has 5/7 of the time, so that a long prompt takes 1.4 times
what it would take alone, plus the overhead of small chunks."""
_FIRST_TOKENS = 64
_FORGETTING = 0.93
"""Forgetting factor per observation: a half-life of ten steps."""
_SWEEPS = 20


class _Line:
    """seconds = sum of terms * factors, terms >= 0: least squares of the relative errors, by coordinate
    descent from the last solution. A table by sizes fails: if only small chunks were observed at some
    context, tokens would seem slow there, and chunks would stay small; and it cannot predict larger batches.

    Ambiguous time is attributed to the first term that can explain it.
    """

    def __init__(self, terms: int) -> None:
        self._squares = [[0.0] * terms for _ in range(terms)]
        self._products = [0.0] * terms
        self._terms = [0.0] * terms

    def __bool__(self) -> bool:
        return any(self._terms)

    def learn(self, seconds: float, factors: tuple[float, ...]) -> None:
        for row, factor in enumerate(factors):
            others = self._squares[row]
            for column, other in enumerate(factors):
                others[column] = _FORGETTING * others[column] + factor * other / seconds**2
            self._products[row] = _FORGETTING * self._products[row] + factor / seconds
        for _ in range(_SWEEPS):
            for row, others in enumerate(self._squares):
                if others[row]:
                    error = self._products[row] - sum(map(mul, others, self._terms))
                    self._terms[row] = max(0.0, self._terms[row] + error / others[row])

    def seconds(self, factors: tuple[float, ...]) -> float:
        spent: float = sum(map(mul, factors, self._terms))
        return spent


def _rows(rows: int) -> tuple[float, ...]:
    """The constant first: larger batches than observed are not expected to be slower."""
    return 1.0, rows / 32


def _chunk(tokens: int, context: int) -> tuple[float, ...]:
    """Scaled so that the terms are of similar size. The tokens first: the time of a single chunk is
    attributed to its tokens, so that the next one is not too large."""
    return tokens / 64, tokens * context / (1 << 18), 1.0


BudgetReason: TypeAlias = Literal["no_decode", "unknown_speed", "within_target", "least_tokens"]
"""What sets a step's prefill budget: no row decodes, so no token waits for the step; nothing is measured yet;
the ITL target; or the floor of LEAST_TOKENS, if the target leaves less."""


@dataclass(frozen=True, slots=True)
class PrefillBudget:
    """How many prompt tokens one step may compute. `target_seconds` None: no token waits for the step."""

    tokens: int
    reason: BudgetReason
    target_seconds: float | None = None


@dataclass(slots=True)
class PrefillPace:
    """`target_seconds` None: AUTOMATIC_RATIO times the decode step."""

    most_tokens: int
    """Budget of a step in which no row decodes: the device computes large chunks best."""
    target_seconds: float | None = None
    _decode: _Line = field(default_factory=lambda: _Line(2))
    _prefill: _Line = field(default_factory=lambda: _Line(3))

    def budget(self, decoding: int, prefilling: int, context: int) -> PrefillBudget:
        """Return the next step's budget, with `decoding` rows and `prefilling` prompts, of which the furthest
        has `context` tokens in its cache."""
        if decoding == 0:
            return PrefillBudget(self.most_tokens, "no_decode")
        target = self._target_seconds(decoding + prefilling)
        if target is None or not self._prefill:
            return PrefillBudget(min(_FIRST_TOKENS, self.most_tokens), "unknown_speed", target)
        left = target - self._decode.seconds(_rows(decoding)) - self._prefill.seconds(_chunk(0, context))
        token = self._prefill.seconds(_chunk(1, context)) - self._prefill.seconds(_chunk(0, context))
        fitting = int(min(self.most_tokens, left / token if token else math.inf))
        if fitting < LEAST_TOKENS:
            return PrefillBudget(LEAST_TOKENS, "least_tokens", target)
        return PrefillBudget(fitting, "within_target", target)

    def _target_seconds(self, rows: int) -> float | None:
        if not self._decode:
            return None
        if self.target_seconds is not None:
            return self.target_seconds
        return AUTOMATIC_RATIO * self._decode.seconds(_rows(rows))

    def step_seconds(self, decoding: int, chunk_tokens: int, context: int) -> float | None:
        """Return the predicted time of a step with this many rows and prompt tokens; None while unknown."""
        if (decoding and not self._decode) or (chunk_tokens and not self._prefill):
            return None
        seconds = self._decode.seconds(_rows(decoding)) if decoding else 0.0
        return seconds + (self._prefill.seconds(_chunk(chunk_tokens, context)) if chunk_tokens else 0.0)

    def observe_decode(self, seconds: float, rows: int) -> None:
        if seconds > 0 and rows:  # With a virtual clock a step takes no time.
            self._decode.learn(seconds, _rows(rows))

    def observe_prefill(self, seconds: float, tokens: int, context: int) -> None:
        """`tokens`: padding included."""
        if seconds > 0 and tokens:
            self._prefill.learn(seconds, _chunk(tokens, context))

    def decode_seconds(self, decoding: int) -> float | None:
        """Return the predicted time of a step that only decodes; None while unknown."""
        return self.step_seconds(decoding, 0, 0)

    def speeds(self) -> dict[str, float]:
        """Return tokens per second by "chunk/context", for operators."""
        if not self._prefill:
            return {}
        return {
            f"{tokens}/{context}": round(tokens / seconds, 1)
            for tokens in (64, 256, 1024)
            for context in (0, 1024, 8192)
            if (seconds := self._prefill.seconds(_chunk(tokens, context)))
        }
