"""Penalties, then the argmax or a draw for each row, in MLX's graph."""

from __future__ import annotations

from collections.abc import Sequence

import mlx.core as mx

from scheduler.engine.mlx.sampling.chooser import Chosen
from scheduler.engine.mlx.sampling.draw import Draw, Noise, best_of
from scheduler.engine.mlx.sampling.penalties import Penalties, TokenCounts
from scheduler.engine.mlx.sampling.row_arrays import put
from scheduler.engine.mlx.sampling.row_sampling import RowSampling


class GraphChooser:
    """A `Chooser` for the rows of one batch, their parameters side by side on the device."""

    def __init__(self, rows: Sequence[RowSampling], noise: Noise) -> None:
        self._rows = tuple(rows)
        self._counted = [row for row in rows if row.counts is not None]
        counted = [
            (i, row.params, row.counts) for i, row in enumerate(rows) if isinstance(row.counts, TokenCounts)
        ]
        assert len(counted) == len(self._counted), "host counts belong to HostChooser"
        self._penalties = Penalties(counted) if counted else None
        self._sampled = [row for row in rows if row.sampled]
        drawn = [i for i, row in enumerate(rows) if row.sampled]
        self._drawn = mx.array(drawn) if 0 < len(drawn) < len(rows) else None
        """The rows that sample, or None if all or none do."""
        self._draw = Draw(self._sampled, noise) if drawn else None

    def leave(self) -> None:
        if self._penalties is not None:
            self._penalties.save()

    def __call__(self, logits: mx.array, inputs: mx.array) -> Chosen:
        if self._penalties is not None:
            logits = self._penalties.apply(logits, inputs, [row.has_output for row in self._counted])
        if self._draw is not None and self._drawn is None:
            return Chosen(self._rows, *self._draw(logits))
        tokens, scores = best_of(logits)
        if self._draw is not None and self._drawn is not None:
            drawn, drawn_scores = self._draw(logits[self._drawn])
            tokens, scores = put(tokens, self._drawn, drawn), put(scores, self._drawn, drawn_scores)
        return Chosen(self._rows, tokens, scores)
