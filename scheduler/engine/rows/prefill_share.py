"""How the rows in prefill share a step's prompt tokens, said to the generator before the step.

It computes one chunk of equal size for each row of its prompt batch, padded to the longest: so the chunk is
the budget divided by the rows. Few rows share a small budget, because a prompt that waits for its turn is
read sooner, on average, than one that is read with seven others. Short prompts take their turn first, but
each prompt is passed by few; beside those that are being read there is room for such as end within this very
step, or long before them. So a short prompt passes any number of long ones, and nobody waits for ever.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import Any

from scheduler.engine.rows.generation import is_read

LEAST_CHUNK_TOKENS = 8
"""Of one row: its progress has a floor, however many share a step."""
_TURN_TOKENS = 96
"""So much of the budget for each row that is read at a time."""
_MOST_PASSES = 16
"""A prompt is passed by the next so many that are shorter."""
_MUCH_SHORTER = 4
"""A prompt of a fraction of what the others have left is read beside them."""


@dataclass(frozen=True, slots=True)
class PrefillShare:
    """`padded`: whether a shorter chunk may be padded to a longer one; where padding would run through a
    recurrent state, all rows take as many tokens as the one that is next to its end."""

    base_rows: int
    chunk_tokens: int
    padded: bool

    def divide(self, generator: Any, budget_tokens: int | None) -> None:
        """`budget_tokens` None: a chunk of `chunk_tokens` for each row."""
        reading = [_tokens(row[0]) for row in generator._currently_processing]
        waiting = list(generator._unprocessed_sequences)
        chunk_tokens = self.chunk_tokens
        if budget_tokens is None or self.base_rows == 1:
            joining = waiting[: max(0, self.base_rows - len(reading))]
        else:
            joining = self._next(reading, waiting, budget_tokens)
            chosen = {sequence[0] for sequence in joining}
            rest = [sequence for sequence in waiting if sequence[0] not in chosen]
            generator._unprocessed_sequences = deque([*joining, *rest])
        rows = len(reading) + len(joining)
        if budget_tokens is not None:
            chunk_tokens = max(LEAST_CHUNK_TOKENS, budget_tokens // max(1, rows))
        if not self.padded:
            coming = [row[0] for row in generator._currently_processing] + [row[1] for row in joining]
            chunk_tokens = min([chunk_tokens, *(len(pieces[0]) for pieces in coming if not is_read(pieces))])
        generator.prefill_batch_size = rows
        generator.prefill_step_size = generator._prompt_batch.prefill_step_size = chunk_tokens

    def _next(self, reading: list[int], waiting: list[Any], budget_tokens: int) -> list[Any]:
        """Who joins those that have `reading` tokens left."""
        places = max(1, min(self.base_rows, budget_tokens // _TURN_TOKENS)) - len(reading)
        # Ids count upwards in order of arrival.
        first = min((sequence[0] for sequence in waiting), default=0)
        joining: list[Any] = []
        left = list(reading)
        for sequence in sorted(waiting, key=lambda one: (one[0] > first + _MOST_PASSES, _tokens(one[1]))):
            tokens = _tokens(sequence[1])
            ends_now = tokens <= budget_tokens // (len(left) + 1)
            passes = len(left) < self.base_rows and tokens * _MUCH_SHORTER <= min(left, default=0)
            if len(joining) < places or ends_now or passes:
                joining.append(sequence)
                left.append(tokens)
        return joining


def _tokens(pieces: list[list[int]]) -> int:
    return sum(map(len, pieces))
