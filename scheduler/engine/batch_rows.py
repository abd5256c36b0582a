"""One layer's keys and values in the running batch: how a row starts from kept pieces, and how it is cut.

These objects go into BatchGenerator through `caches=`: it calls `merge` of the first row's, and from then
on `update_and_fetch`, `prepare`, `finalize`, `extend`, `filter` and `extract` of the batch's. All but the
first and the last are mlx-lm's own `BatchKVCache`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import mlx.core as mx
from mlx_lm.models.cache import BatchKVCache

from scheduler.engine.kv_segment import KeysValues


@dataclass(frozen=True, slots=True)
class RowStart:
    """One layer of a row before it joins: pieces of the prefix cache, each with the tokens taken of it."""

    pieces: tuple[tuple[KeysValues, int], ...]
    coming_tokens: int
    """What the prompt still adds: room is made for it once, not grown step by step."""

    def merge(self, rows: Sequence[RowStart]) -> BatchRows:
        return BatchRows.start(rows)

    def size(self) -> int:
        return sum(taken for _, taken in self.pieces)

    @property
    def nbytes(self) -> int:
        """None of its own: the pieces are the prefix cache's."""
        return 0


@dataclass(frozen=True, slots=True)
class RowView:
    """One layer of one row as it is in the batch. Nothing is copied before `cut`; hold it no longer than
    until the next step, which would have to copy the whole batch for its sake."""

    keys: mx.array
    values: mx.array
    row: int
    first: int

    def cut(self, start: int, end: int) -> KeysValues:
        """A lazy view of positions [start, end) of the row."""
        span = slice(self.first + start, self.first + end)
        return (
            self.keys[self.row : self.row + 1, :, span],
            self.values[self.row : self.row + 1, :, span],
        )


class BatchRows(BatchKVCache):  # type: ignore[misc]  # mlx-lm has no types
    """mlx-lm's padded batch of rows, made from pieces and cut without copying whole rows."""

    @classmethod
    def start(cls, rows: Sequence[RowStart]) -> BatchRows:
        """Write every row's pieces to their places, right-justified: one copy of what is kept, no more."""
        lengths = [row.size() for row in rows]
        longest = max(lengths)
        batch = cls([longest - length for length in lengths])
        if longest == 0:
            return batch
        keys, values = next(piece for row in rows for piece, _ in row.pieces)
        room = longest + max(row.coming_tokens for row in rows)
        batch.keys = mx.zeros((len(rows), keys.shape[1], room, keys.shape[3]), keys.dtype)
        batch.values = mx.zeros((len(rows), values.shape[1], room, values.shape[3]), values.dtype)
        for index, (row, length) in enumerate(zip(rows, lengths, strict=True)):
            position = longest - length
            for (keys, values), taken in row.pieces:
                batch.keys[index : index + 1, :, position : position + taken] = keys[..., :taken, :]
                batch.values[index : index + 1, :, position : position + taken] = values[..., :taken, :]
                position += taken
        batch.offset += longest
        batch._idx = longest
        return batch

    def extract(self, idx: int) -> Any:
        """A view of the row, where upstream lines up a copy of all of it."""
        return RowView(self.keys, self.values, idx, self.left_padding.tolist()[idx])
