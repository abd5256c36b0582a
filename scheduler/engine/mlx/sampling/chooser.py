"""The seam between the two ways to choose tokens: MLX's graph (`draw.py`), NumPy
(`host_chooser.py`).

`tests/scheduler/engine/mlx/sampling/test_rows_sampler.py` holds both to one contract.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

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


class Chooser(Protocol):
    """Penalties, cut-offs and draws for the rows of one batch. Rebuilt when rows join or leave."""

    def __call__(self, logits: mx.array, inputs: mx.array) -> Chosen:
        """Return one token for each row. `logits`: (rows, vocabulary) float32, -inf where a token is masked;
        `inputs`: (rows,), the tokens that they follow.

        No row's logits or parameters raise, or change another row's token. A row is failed (`verify`) if the
        score of its best token is not finite, and if one of its logits is NaN.
        """
        ...

    def leave(self) -> None:
        """Write the token counts back to the rows."""
        ...
