"""What is chosen of the logits of a batch, by MLX's graph (`draw.py`) or by NumPy (`host_chooser.py`).

Both have one contract (`tests/scheduler/engine/mlx/sampling/test_rows_sampler.py`): penalties, cut-offs and
draws for (rows, vocabulary) float32 logits, -inf where a token is masked. No row's logits or parameters
raise, or change another row's token. A row is failed (`verify`) if the score of its best token is not finite,
and if one of its logits is NaN.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import mlx.core as mx

from scheduler.engine.mlx.sampling.row_sampling import RowSampling

NOT_FINITE = (
    "no token can be chosen: the row's logits are not finite (damaged weights, an overflow in the weights' "
    "dtype, or extreme sampling parameters)"
)


@dataclass(frozen=True, slots=True)
class Chosen:
    """One token for each row of a batch, on the device until it is read."""

    rows: Sequence[RowSampling]
    tokens: mx.array
    """(rows,) uint32. Always ids of the vocabulary: they may be the next step's input before `verify`."""
    scores: mx.array
    """(rows,) float32: the winning score; not finite if the row had nothing to choose from, or a NaN that no
    mask has taken away. It costs half an argmax (0.1 ms a step of 24 rows and 8,192 tokens on a CPU)."""
    errors: Mapping[int, str] = field(default_factory=dict)
    """Errors by place in the batch: rows whose parameters raised."""

    def verify(self) -> None:
        """Mark the rows whose token must not be emitted as failed. Waits for `scores`."""
        scores: list[float] = self.scores.tolist()  # type: ignore[assignment]
        for place, (row, score) in enumerate(zip(self.rows, scores, strict=True)):
            if place in self.errors:
                row.failure = self.errors[place]
            elif not math.isfinite(score):
                row.failure = NOT_FINITE
