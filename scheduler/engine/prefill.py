"""Which prompts take part in a step's prefill, and how many tokens of each are computed: pure functions.

A step's chunks form one batch, a row for each prompt, padded to the longest: chunks of equal length cost
least. Few prompts share a small budget, because a prompt that waits is prefilled sooner, on average, than one
that shares every step with seven others. Shortest remaining prompt first, but a bounded number may pass each
prompt. In addition to those that have begun, prompts are prefilled that finish within this step or have at
most a quarter of the others' remaining tokens. So a short prompt passes any number of long ones, and none
starves.
"""

from __future__ import annotations

from collections import abc
from collections.abc import Container
from dataclasses import dataclass

from scheduler.engine.sequence import Sequence

LEAST_CHUNK_TOKENS = 8
"""The least progress of one row, however many share a step."""
_ROW_BUDGET_TOKENS = 96
"""Budget for each row that is prefilled at a time."""
MOST_PASSES = 16
"""How many later, shorter prompts may pass a prompt."""
_MUCH_SHORTER = 4
"""A prompt with at most 1/4 of the others' remaining tokens is prefilled beside them."""


@dataclass(frozen=True, slots=True)
class PrefillLimits:
    """Limits of a back end's prefill. `padded`: a shorter chunk may be padded to a longer one. If padding
    would run through a recurrent state, it is False, and all rows of a step compute the same number of
    tokens."""

    rows: int
    chunk_tokens: int
    padded: bool = True


@dataclass(frozen=True, slots=True)
class Prompt:
    """What is left to prefill of a prompt, without its last token. `begun`: it has its row in the back end's
    prefill and must take part in every step. `until_pause`: tokens to the next checkpoint."""

    request_id: int
    admission: int
    left_tokens: int
    until_pause: int
    begun: bool

    @classmethod
    def of(cls, row: Sequence, begun: Container[int]) -> Prompt:
        """`begun`: request ids of the rows whose prefill has begun."""
        return cls(
            row.request_id,
            row.admission,
            row.chunkable_tokens,
            row.until_checkpoint(row.computed_tokens),
            row.request_id in begun,
        )


@dataclass(frozen=True, slots=True)
class Chunk:
    """Compute the next `tokens` tokens of this prompt."""

    request_id: int
    tokens: int


def share(prompts: abc.Sequence[Prompt], budget_tokens: int, limits: PrefillLimits) -> tuple[Chunk, ...]:
    """The chunks of one step. Their padded size, rows x longest, is within `budget_tokens`, except for the
    floor of LEAST_CHUNK_TOKENS a row."""
    begun = [prompt for prompt in prompts if prompt.begun]
    waiting = [prompt for prompt in prompts if not prompt.begun]
    rows = begun + _joining(begun, waiting, budget_tokens, limits.rows)
    if not rows:
        return ()
    tokens = min(limits.chunk_tokens, max(LEAST_CHUNK_TOKENS, budget_tokens // len(rows)))
    if not limits.padded:
        tokens = min(tokens, *(row.until_pause for row in rows))
    return tuple(Chunk(row.request_id, min(tokens, row.until_pause)) for row in rows)


def padded_tokens(chunks: abc.Sequence[Chunk]) -> int:
    """Tokens that the device computes for them."""
    return len(chunks) * max((chunk.tokens for chunk in chunks), default=0)


def _joining(
    begun: abc.Sequence[Prompt], waiting: abc.Sequence[Prompt], budget_tokens: int, most_rows: int
) -> list[Prompt]:
    if most_rows == 1:
        return [] if begun else list(waiting[:1])
    places = max(1, min(most_rows, budget_tokens // _ROW_BUDGET_TOKENS)) - len(begun)
    first = min((prompt.admission for prompt in waiting), default=0)
    joining: list[Prompt] = []
    left = [prompt.left_tokens for prompt in begun]
    for prompt in sorted(waiting, key=lambda one: (one.admission > first + MOST_PASSES, one.left_tokens)):
        ends_now = prompt.left_tokens < budget_tokens // (len(left) + 1)
        passes = len(left) < most_rows and prompt.left_tokens * _MUCH_SHORTER <= min(left, default=0)
        if len(joining) < places or ends_now or passes:
            joining.append(prompt)
            left.append(prompt.left_tokens)
    return joining
