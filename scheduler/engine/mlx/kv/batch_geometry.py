"""Which runs the rows of a batch share, and where each row's own tokens begin: equal in all layers.

BatchGenerator changes a batch layer by layer (`merge`, `extend`, `filter`, `finalize`). A geometry is never
mutated: the first layer that makes a change creates the geometry after it (`after`), and the other layers get
the same object.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

import mlx.core as mx

from scheduler.engine.mlx.kv.kv_segment import KvSegment
from scheduler.engine.mlx.kv.padded_rows import Places
from scheduler.engine.mlx.packed import KeysValues, span_of
from scheduler.engine.mlx.shared_attention import SharedGroup


@dataclass(frozen=True, slots=True)
class Run:
    """The first `tokens` tokens of a cached segment, in all layers that can be cut."""

    segment: KvSegment
    tokens: int

    def keys_values(self, layer: int) -> KeysValues:
        """Return one layer's keys and values of this run, (1, kv heads, tokens, head size) each."""
        keys, values = self.segment.layers[layer]
        if self.tokens == self.segment.tokens:
            return keys, values
        return span_of(keys, 0, self.tokens), span_of(values, 0, self.tokens)


Path: TypeAlias = tuple[Run, ...]


def tokens_of(path: Path) -> int:
    return sum(run.tokens for run in path)


@dataclass(frozen=True, slots=True)
class RunGroup:
    """The rows that have this run in their paths."""

    run: Run
    rows: tuple[int, ...]
    index: mx.array | None
    """The rows as an array; None if they are all rows of the batch, in order."""

    def of_layer(self, layer: int) -> SharedGroup:
        return SharedGroup(*self.run.keys_values(layer), self.rows, self.index)


class BatchGeometry:
    """`paths`: the runs that each row attends to in place, from position 0. `padding`: the columns before
    each row's own tokens. `lags`: the columns after them, to the end of the batch; empty if all end there."""

    __slots__ = (
        "_after",
        "_columns",
        "_offsets",
        "_places",
        "groups",
        "lags",
        "left_padding",
        "padding",
        "paths",
        "shared_tokens",
    )

    def __init__(self, paths: tuple[Path, ...], padding: tuple[int, ...], lags: tuple[int, ...] = ()) -> None:
        self.paths = paths
        self.padding = padding
        self.lags = lags
        self.shared_tokens = tuple(tokens_of(path) for path in paths)
        self.left_padding = mx.array(padding)
        self.groups = _groups(paths)
        self._after: BatchGeometry | None = None
        self._offsets: tuple[int, mx.array] | None = None
        self._columns: tuple[tuple[int, int], mx.array] | None = None
        self._places: tuple[tuple[int, int, int], Places] | None = None

    def after(
        self, paths: tuple[Path, ...], padding: tuple[int, ...], lags: tuple[int, ...] = ()
    ) -> BatchGeometry:
        """Return the geometry after a change. All layers that make the same change to this one get the same
        object; a change without effect returns this one."""
        for known in (self, self._after):
            # Tuples compare their items by identity first: the layers' paths are the same objects.
            if known is not None and (known.paths, known.padding, known.lags) == (paths, padding, lags):
                return known
        self._after = BatchGeometry(paths, padding, lags)
        return self._after

    def offsets(self, end: int) -> mx.array:
        """Return (rows,): the position of each row's next token, in layers whose columns end at `end`."""
        if self._offsets is None or self._offsets[0] != end:
            ends = [end - lag for lag in self.lags] or [end] * len(self.padding)
            own = zip(self.shared_tokens, ends, self.padding, strict=True)
            self._offsets = end, mx.array([shared + own_end - padding for shared, own_end, padding in own])
        return self._offsets[1]

    def columns(self, end: int, tokens: int) -> mx.array:
        """Return (rows, tokens): where the next tokens of rows that lag are written, in layers whose columns
        end at `end`."""
        if self._columns is None or self._columns[0] != (end, tokens):
            ends = mx.array([end - lag for lag in self.lags])
            self._columns = (end, tokens), ends[:, None] + mx.arange(tokens)[None]
        return self._columns[1]

    def places(self, end: int, heads: int, tokens: int) -> Places:
        """Return where each head of the next tokens of rows that lag is written, in layers whose columns end
        at `end`. Whole arrays of one type, made once a step: of slices and narrower ones MLX makes such, in
        every layer."""
        if self._places is None or self._places[0] != (end, heads, tokens):
            shape = (len(self.padding), heads, tokens)
            parts = (
                mx.arange(shape[0])[:, None, None],
                mx.arange(heads)[None, :, None],
                self.columns(end, tokens)[:, None],
            )
            rows, head, columns = (mx.broadcast_to(part, shape) for part in parts)
            self._places = (end, heads, tokens), (rows, head, columns)
        return self._places[1]

    def mask(self, end: int, tokens: int, window_size: int | None) -> mx.array:
        """Return (rows, 1, tokens, end + tokens) bool: the own columns that the next tokens of rows that lag
        see, as mlx-lm's `create_causal_mask` for rows that do not."""
        written, columns = self.columns(end, tokens)[:, :, None], mx.arange(end + tokens)
        seen = (columns <= written) & (columns >= self.left_padding[:, None, None])
        if window_size is not None:
            seen = seen & (columns > written - window_size)
        return seen[:, None]


def _groups(paths: tuple[Path, ...]) -> tuple[RunGroup, ...]:
    members: dict[Run, list[int]] = {}
    for row, path in enumerate(paths):
        for run in path:
            members.setdefault(run, []).append(row)
    return tuple(
        RunGroup(run, tuple(rows), None if len(rows) == len(paths) else mx.array(rows))
        for run, rows in members.items()
    )
