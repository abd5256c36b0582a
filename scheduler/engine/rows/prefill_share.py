"""How the rows in prefill share a step's prompt tokens, said to BatchGenerator before the step.

It computes one chunk of equal size for each row of its prompt batch, padded to the longest: so the chunk is
the budget divided by the rows. Rows join in order of arrival; beyond `base_rows` only such as end within
this very step, so that a short prompt passes any number of long ones.
"""

from __future__ import annotations

from collections import deque
from typing import Any

LEAST_CHUNK_TOKENS = 8
"""Of one row: its progress has a floor, however many share a step."""


def share_prefill(generator: Any, budget_tokens: int | None, base_rows: int, chunk_tokens: int) -> None:
    """`budget_tokens` None: a chunk of `chunk_tokens` for each row."""
    reading, waiting = generator._currently_processing, generator._unprocessed_sequences
    first = list(waiting)[: max(0, base_rows - len(reading))]
    rows = len(reading) + len(first)
    if budget_tokens is not None:
        if base_rows > 1:
            for sequence in list(waiting)[len(first) :]:
                if sum(map(len, sequence[1])) <= budget_tokens // (rows + 1):
                    first.append(sequence)
                    rows += 1
            chosen = {sequence[0] for sequence in first}
            rest = [sequence for sequence in waiting if sequence[0] not in chosen]
            generator._unprocessed_sequences = deque([*first, *rest])
        chunk_tokens = max(LEAST_CHUNK_TOKENS, budget_tokens // max(1, rows))
    generator.prefill_batch_size = max(base_rows, rows)
    generator.prefill_step_size = generator._prompt_batch.prefill_step_size = chunk_tokens
