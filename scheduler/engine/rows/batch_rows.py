"""One layer's keys and values in the running batch: runs that rows share in place, and private rest.

These objects go into BatchGenerator through `caches=`: it calls `merge` of the first row's, and from then
on `update_and_fetch`, `prepare`, `finalize`, `make_mask`, `extend`, `filter` and `extract` of the batch's.
The private rest is mlx-lm's own padded `BatchKVCache`; positions (`offset`) count what is shared too.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import mlx.core as mx
from mlx_lm.models.cache import BatchKVCache

from scheduler.engine.rows.kv_segment import KeysValues
from scheduler.engine.rows.shared_attention import SharedGroup


@dataclass(frozen=True, slots=True)
class Run:
    """The first `tokens` tokens of a kept segment, in one layer. Equal `key`s are the same segment."""

    key: int
    keys: mx.array
    values: mx.array
    tokens: int

    def group(self, rows: tuple[int, ...], index: mx.array | None) -> SharedGroup:
        return SharedGroup(self.keys[..., : self.tokens, :], self.values[..., : self.tokens, :], rows, index)


Path: TypeAlias = tuple[Run, ...]


def tokens_of(path: Path) -> int:
    return sum(run.tokens for run in path)


@dataclass(frozen=True, slots=True)
class RowStart:
    """One layer of a row before it joins: runs that stay where they are, runs that are copied behind them."""

    shared: Path
    copied: Path
    coming_tokens: int
    """What the prompt still adds: room is made for it once, not grown step by step."""

    def merge(self, rows: Sequence[RowStart]) -> BatchRows:
        return BatchRows.start(rows)

    def size(self) -> int:
        return tokens_of(self.shared) + tokens_of(self.copied)

    @property
    def nbytes(self) -> int:
        """None of its own: the runs are the prefix cache's."""
        return 0


@dataclass(frozen=True, slots=True)
class RowView:
    """One layer of one row as it is in the batch. Nothing is copied before it is evaluated; hold it no
    longer than until the next step, which would have to copy the whole batch for its sake."""

    keys: mx.array
    values: mx.array
    row: int
    first: int
    shared_tokens: int

    def cut(self, start: int, end: int) -> KeysValues:
        """A lazy view of positions [start, end), which lie behind what is shared."""
        assert start >= self.shared_tokens, "what is shared is kept already"
        base = self.first - self.shared_tokens
        span = slice(base + start, base + end)
        return (
            self.keys[self.row : self.row + 1, :, span],
            self.values[self.row : self.row + 1, :, span],
        )


class BatchRows(BatchKVCache):  # type: ignore[misc]  # mlx-lm has no types
    """`groups` is what attention asks: which runs are shared by which rows; empty: nothing is."""

    def __init__(self, left_padding: list[int]) -> None:
        super().__init__(left_padding)
        self.left_padding: Any
        self.paths: list[Path] = [()] * len(left_padding)
        self.groups: tuple[SharedGroup, ...] = ()

    @classmethod
    def start(cls, rows: Sequence[RowStart]) -> BatchRows:
        """Write what is copied to its places, right-justified; what is shared is not touched."""
        lengths = [tokens_of(row.copied) for row in rows]
        longest = max(lengths)
        batch = cls([longest - length for length in lengths])
        if longest:
            batch._copy_in(rows, longest)
        batch.offset += longest + mx.array([tokens_of(row.shared) for row in rows])
        batch._idx = longest
        batch._set_paths([row.shared for row in rows])
        return batch

    def _copy_in(self, rows: Sequence[RowStart], longest: int) -> None:
        like = next(run for row in rows for run in row.copied)
        room = longest + max(row.coming_tokens for row in rows)
        key_size, value_size = like.keys.shape[3], like.values.shape[3]
        self.keys = mx.zeros((len(rows), like.keys.shape[1], room, key_size), like.keys.dtype)
        self.values = mx.zeros((len(rows), like.values.shape[1], room, value_size), like.values.dtype)
        for index, row in enumerate(rows):
            position = longest - tokens_of(row.copied)
            for run in row.copied:
                end = position + run.tokens
                self.keys[index : index + 1, :, position:end] = run.keys[..., : run.tokens, :]
                self.values[index : index + 1, :, position:end] = run.values[..., : run.tokens, :]
                position = end

    def rebase(self, paths: Mapping[int, Path]) -> None:
        """Some rows begin with longer (or cut) runs from now on: what they had of them privately goes."""
        grown = [0] * len(self.paths)
        for row, path in paths.items():
            grown[row] = tokens_of(path) - tokens_of(self.paths[row])
            assert grown[row] >= 0, "a row cannot be made to hold what it has never computed"
        if any(grown):
            self.left_padding = self.left_padding + mx.array(grown)
            self._drop_padding()
        self._set_paths([paths.get(row, path) for row, path in enumerate(self.paths)])

    def _drop_padding(self) -> None:
        """As mlx-lm's `filter` does: what is padding in all rows is nobody's."""
        least = min(self.left_padding.tolist())
        if least > 0 and self.keys is not None:
            self.keys, self.values = self.keys[..., least:, :], self.values[..., least:, :]
            self._idx -= least
            self.left_padding = self.left_padding - least

    def extend(self, other: BatchRows) -> None:
        super().extend(other)
        self._set_paths([*self.paths, *other.paths])

    def filter(self, batch_indices: list[int]) -> None:
        super().filter(batch_indices)
        self._set_paths([self.paths[row] for row in batch_indices])

    def extract(self, idx: int) -> Any:
        """A view of the row, where upstream lines up a copy of all of it."""
        padding = self.left_padding.tolist()[idx]
        return RowView(self.keys, self.values, idx, padding, tokens_of(self.paths[idx]))

    def __deepcopy__(self, memo: dict[int, Any]) -> BatchRows:
        """For BatchGenerator's split. Array objects are written in place, so each side has its own; what
        they hold is shared until one of them writes."""
        twin = BatchRows.__new__(BatchRows)
        twin.__dict__.update(self.__dict__)
        for name in ("keys", "values", "offset", "left_padding"):
            array = getattr(self, name)
            setattr(twin, name, None if array is None else array[:])
        return twin

    def _set_paths(self, paths: list[Path]) -> None:
        self.paths = paths
        members: dict[tuple[int, int], tuple[Run, list[int]]] = {}
        for row, path in enumerate(paths):
            for run in path:
                members.setdefault((run.key, run.tokens), (run, []))[1].append(row)
        self.groups = tuple(
            run.group(tuple(rows), None if len(rows) == len(paths) else mx.array(rows))
            for run, rows in members.values()
        )
