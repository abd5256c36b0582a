"""Penalties, and then the best token of each row or a draw, in MLX's graph."""

from __future__ import annotations

from collections.abc import Sequence

import mlx.core as mx

from scheduler.engine.draw import Draw, Noise
from scheduler.engine.penalties import Penalties, TokenCounts
from scheduler.engine.row_arrays import put
from scheduler.engine.row_sampling import RowSampling


class GraphChoice:
    """The rows of one batch, their parameters side by side on the device."""

    def __init__(self, rows: Sequence[RowSampling], noise: Noise) -> None:
        self._said = [row for row in rows if row.said is not None]
        said = [(i, row.params, row.said) for i, row in enumerate(rows) if isinstance(row.said, TokenCounts)]
        assert len(said) == len(self._said), "counts on the host are for the other choice"
        self._penalties = Penalties(said) if said else None
        self._sampled = [row for row in rows if row.sampled]
        drawn = [i for i, row in enumerate(rows) if row.sampled]
        self._drawn = mx.array(drawn) if 0 < len(drawn) < len(rows) else None
        """The rows that sample; None: all or none."""
        self._draw = Draw(self._sampled, noise) if drawn else None

    def leave(self) -> None:
        if self._penalties is not None:
            self._penalties.save()

    def __call__(self, logits: mx.array, inputs: mx.array) -> mx.array:
        """(rows,) uint32 of (rows, vocabulary)."""
        if self._penalties is not None:
            logits = self._penalties.apply(logits, inputs, [row.has_said for row in self._said])
        tokens = mx.argmax(logits, axis=-1).astype(mx.uint32)
        if self._draw is None:
            return tokens
        drawn = self._draw((logits if self._drawn is None else logits[self._drawn]).astype(mx.float32))
        return drawn if self._drawn is None else put(tokens, self._drawn, drawn)
