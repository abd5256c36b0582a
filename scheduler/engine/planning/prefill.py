"""Which prompts take part in a step's prefill, and how many tokens of each are computed: pure functions.

A step's chunks form one batch, a row for each prompt, padded to the longest: chunks of equal length cost
least (`prefill_batches.py`: which prompts these are). A prompt that does not end within a step has the whole
budget, because a device computes one chunk as fast as several of the same tokens together: four prompts that
share each step all have their first token when the last one of four in sequence has its own. The order is
shortest remaining prompt first, but a bounded number may pass each prompt. Beside a prompt that has begun, a
step prefills those that end within it or have at most a quarter of the others' remaining tokens. So a short
prompt passes any number of long ones, and none starves.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import msgspec

from scheduler.engine.planning.prefill_batches import NextBatch
from scheduler.engine.sequence import EngineSequence

LEAST_CHUNK_TOKENS = 8
"""The least progress of a row, and of a step, whatever its target: better a late token than no end."""
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


class Chunk(msgspec.Struct, frozen=True):
    """Compute the next `tokens` tokens of this prompt."""

    request_id: int
    tokens: int


def share(batch: NextBatch, budget_tokens: int, limits: PrefillLimits) -> tuple[Chunk, ...]:
    """Return the chunks of one step, of all rows in the batch that have begun and of those that join. Their
    padded size, rows x longest, is within `budget_tokens`, except for the floor of LEAST_CHUNK_TOKENS a
    row."""
    chosen = batch.begun + _joining(batch, budget_tokens, limits.rows)
    if not chosen:
        return ()
    tokens = min(limits.chunk_tokens, max(LEAST_CHUNK_TOKENS, budget_tokens // len(chosen)))
    if not limits.padded:
        tokens = min(tokens, *(row.until_pause for row in chosen))
    return tuple(Chunk(row.request_id, min(tokens, row.until_pause)) for row in chosen)


def padded_tokens(chunks: Sequence[Chunk]) -> int:
    """Return the tokens that the device computes for these chunks, padding included."""
    return len(chunks) * max((chunk.tokens for chunk in chunks), default=0)


def _joining(batch: NextBatch, budget_tokens: int, most_rows: int) -> list[EngineSequence]:
    begun, waiting = batch.begun, batch.coming
    if most_rows == 1:
        return [] if begun else list(waiting[:1])
    first = min((row.admission for row in waiting), default=0)
    joining: list[EngineSequence] = []
    left = [row.chunkable_tokens for row in begun]
    for row in sorted(waiting, key=lambda one: (one.admission > first + MOST_PASSES, one.chunkable_tokens)):
        tokens = row.chunkable_tokens
        ends_now = tokens <= budget_tokens // (len(left) + 1)
        passes = len(left) < most_rows and tokens * _MUCH_SHORTER <= min(left, default=0)
        if not left or ends_now or passes:
            joining.append(row)
            left.append(tokens)
    return joining
