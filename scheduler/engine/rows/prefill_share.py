"""How the rows in prefill share a step's prompt tokens, said to BatchGenerator before the step.

It computes one chunk of equal size for each row of its prompt batch, padded to the longest: so the chunk is
the budget divided by the rows. Rows join in order of arrival; beyond `base_rows` only such as end within
this very step, so that a short prompt passes any number of long ones.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import Any

from scheduler.engine.rows.generation import is_read

LEAST_CHUNK_TOKENS = 8
"""Of one row: its progress has a floor, however many share a step."""


@dataclass(frozen=True, slots=True)
class PrefillShare:
    """`padded`: whether a shorter chunk may be padded to a longer one; where padding would run through a
    recurrent state, all rows take as many tokens as the one that is next to its end."""

    base_rows: int
    chunk_tokens: int
    padded: bool

    def divide(self, generator: Any, budget_tokens: int | None) -> None:
        """`budget_tokens` None: a chunk of `chunk_tokens` for each row."""
        reading, waiting = generator._currently_processing, generator._unprocessed_sequences
        joining = list(waiting)[: max(0, self.base_rows - len(reading))]
        chunk_tokens = self.chunk_tokens
        if budget_tokens is not None:
            if self.base_rows > 1:
                joining = self._with_short_ones(joining, list(waiting), len(reading), budget_tokens)
                chosen = {sequence[0] for sequence in joining}
                rest = [sequence for sequence in waiting if sequence[0] not in chosen]
                generator._unprocessed_sequences = deque([*joining, *rest])
            chunk_tokens = max(LEAST_CHUNK_TOKENS, budget_tokens // max(1, len(reading) + len(joining)))
        if not self.padded:
            coming = [row[0] for row in reading] + [sequence[1] for sequence in joining]
            chunk_tokens = min([chunk_tokens, *(len(pieces[0]) for pieces in coming if not is_read(pieces))])
        generator.prefill_batch_size = max(self.base_rows, len(reading) + len(joining))
        generator.prefill_step_size = generator._prompt_batch.prefill_step_size = chunk_tokens

    def _with_short_ones(
        self, joining: list[Any], waiting: list[Any], reading: int, budget_tokens: int
    ) -> list[Any]:
        rows = reading + len(joining)
        for sequence in waiting[len(joining) :]:
            if sum(map(len, sequence[1])) <= budget_tokens // (rows + 1):
                joining.append(sequence)
                rows += 1
        return joining
