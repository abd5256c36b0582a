"""How many prompt tokens a step may compute: what fits between two tokens of those who decode.

Learnt from the running engine, never configured: seconds of a decode step by its rows, and of a prefill chunk
by its tokens and the context they are read in, each a line fitted through the latest steps.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from operator import mul
from typing import Literal, TypeAlias

LEAST_TOKENS = 8
"""Whatever the target: a prefill that waits for ever is worse than a late token."""
AUTOMATIC_RATIO = 3.5
"""Without a target in time: a step with prefill may take so many times a step without, of all that are there:
who is read now decodes soon. Prefill then has 5/7 of the time, so that a long prompt takes 1.4 times what it
would alone, and small chunks' losses on top."""
_FIRST_TOKENS = 64
_FADES = 0.93
"""Of each step's weight with the next one: half of what is known is from the last ten."""
_SWEEPS = 20


class _Line:
    """seconds = the sum of terms * factors, no term below 0: least squares of the relative errors, by
    coordinate descent from where it was. A table by sizes would not do: where it holds only small chunks at
    some context, tokens seem slow there, and chunks stay small; and of larger batches it says nothing.

    What cannot be told apart is put down to the first term that can have it."""

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
                others[column] = _FADES * others[column] + factor * other / seconds**2
            self._products[row] = _FADES * self._products[row] + factor / seconds
        for _ in range(_SWEEPS):
            for row, others in enumerate(self._squares):
                if others[row]:
                    error = self._products[row] - sum(map(mul, others, self._terms))
                    self._terms[row] = max(0.0, self._terms[row] + error / others[row])

    def seconds(self, factors: tuple[float, ...]) -> float:
        spent: float = sum(map(mul, factors, self._terms))
        return spent


def _rows(rows: int) -> tuple[float, ...]:
    """One row first: of larger batches than were seen, no more is expected than is known."""
    return 1.0, rows / 32


def _chunk(tokens: int, context: int) -> tuple[float, ...]:
    """In units in which the terms are of a kind. The tokens first: what one chunk alone has taken is put
    down to its tokens, so that the next one is not larger than it may be."""
    return tokens / 64, tokens * context / (1 << 18), 1.0


BudgetReason: TypeAlias = Literal["no_decode", "unknown_speed", "within_target", "least_tokens"]
"""Why a step's prefill budget is what it is: nobody decodes, so nobody waits for a token; nothing has been
measured yet; it fits the inter-token target; or the target leaves less than the floor of LEAST_TOKENS."""


@dataclass(frozen=True, slots=True)
class PrefillBudget:
    """How many prompt tokens one step may compute. `target_seconds` None: no token waits for the step."""

    tokens: int
    reason: BudgetReason
    target_seconds: float | None = None


@dataclass(slots=True)
class PrefillPace:
    """`target_seconds` None: in proportion to the decode step (AUTOMATIC_RATIO)."""

    most_tokens: int
    """Of one step while nobody decodes: large chunks are what the device computes best."""
    target_seconds: float | None = None
    _decode: _Line = field(default_factory=lambda: _Line(2))
    _prefill: _Line = field(default_factory=lambda: _Line(3))

    def budget(self, decoding: int, prefilling: int, context: int) -> PrefillBudget:
        """Of the coming step, with `decoding` rows and `prefilling` prompts, the longest of which has
        `context` tokens in its cache."""
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
        """What a step of so many rows and prompt tokens takes; None while it cannot be known."""
        if (decoding and not self._decode) or (chunk_tokens and not self._prefill):
            return None
        seconds = self._decode.seconds(_rows(decoding)) if decoding else 0.0
        return seconds + (self._prefill.seconds(_chunk(chunk_tokens, context)) if chunk_tokens else 0.0)

    def observe_decode(self, seconds: float, rows: int) -> None:
        if seconds > 0 and rows:  # A clock that stood still teaches nothing.
            self._decode.learn(seconds, _rows(rows))

    def observe_prefill(self, seconds: float, tokens: int, context: int) -> None:
        """`tokens`: padding included."""
        if seconds > 0 and tokens:
            self._prefill.learn(seconds, _chunk(tokens, context))

    def decode_seconds(self, decoding: int) -> float | None:
        """What a step of so many rows takes."""
        return self.step_seconds(decoding, 0, 0)

    def speeds(self) -> dict[str, float]:
        """Tokens per second by "chunk/context", for operators."""
        if not self._prefill:
            return {}
        return {
            f"{tokens}/{context}": round(tokens / seconds, 1)
            for tokens in (64, 256, 1024)
            for context in (0, 1024, 8192)
            if (seconds := self._prefill.seconds(_chunk(tokens, context)))
        }
