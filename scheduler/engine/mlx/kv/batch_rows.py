"""One layer's keys and values in the running batch: runs that rows share in place, and each row's private
rest.

BatchGenerator gets these objects through `caches=`: it calls `merge` of the first row's, and from then on
`update_and_fetch`, `prepare`, `finalize`, `make_mask`, `extend`, `filter` and `extract` of the batch's.
Positions (`offset`) include shared tokens. `batch_geometry.py` owns what is equal in all layers: layers hold
the same geometry, and their own arrays.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from weakref import ref

import mlx.core as mx
from mlx_lm.models.base import create_causal_mask

from scheduler.engine.mlx.device import device
from scheduler.engine.mlx.kv.batch_geometry import BatchGeometry, Path, tokens_of
from scheduler.engine.mlx.kv.padded_rows import Arrays, PaddedRows
from scheduler.engine.mlx.packed import (
    KeysValues,
    Numbers,
    Packed,
    Packing,
    arrays_of,
    halves_of,
    packed,
    span_of,
    unpacked,
)
from scheduler.engine.mlx.shared_attention import SharedGroup


@dataclass(frozen=True, slots=True)
class RowStart:
    """One layer of a row before it joins: runs that stay in place, and runs that are copied behind them."""

    layer: int
    """Its index among the layers that can be cut, as in a segment."""
    geometry: BatchGeometry
    """The geometry of this row alone: what it shares. The same object in all its layers."""
    copied: Path
    coming_tokens: int
    """Tokens that the prompt still adds: room for them is allocated once."""
    packing: Packing | None = None
    """Into what keys and values are packed; None leaves them as the model computes them."""

    def merge(self, rows: Sequence[RowStart]) -> BatchRows:
        return BatchRows.start(rows)

    def size(self) -> int:
        return self.geometry.shared_tokens[0] + tokens_of(self.copied)

    @property
    def nbytes(self) -> int:
        """Return 0: the runs belong to the prefix cache."""
        return 0


@dataclass(frozen=True, slots=True)
class RowView:
    """One layer of one row at the time of the call. Nothing is copied before it is evaluated. Hold it no
    longer than until the next step, which would otherwise have to copy the whole batch."""

    private: tuple[Numbers, ...]
    """The keys and values of the row's private part; empty if all of it is shared."""
    first: int
    shared_tokens: int

    def cut(self, start: int, end: int) -> KeysValues:
        """Return a lazy view of positions [start, end), which are behind the shared ones."""
        assert start >= self.shared_tokens, "shared tokens are cached already"
        keys, values = self.private
        base = self.first - self.shared_tokens
        return span_of(keys, base + start, base + end), span_of(values, base + start, base + end)


class BatchRows:
    """One layer of the running batch. `groups`, which attention reads, are the runs shared by rows; empty if
    none are."""

    def __init__(
        self, layer: int, private: PaddedRows, geometry: BatchGeometry, packing: Packing | None = None
    ) -> None:
        self._layer = layer
        self._private = private
        self._packing = packing
        self._right_padding: list[int] | None = None
        self._fetched: tuple[ref[mx.array], ...] = ()
        """The keys and values that were unpacked last, as long as the model holds them."""
        self._take(geometry)

    @classmethod
    def start(cls, rows: Sequence[RowStart]) -> BatchRows:
        """Copy the copied runs to their places, right-justified; shared runs are not touched."""
        layer, lengths = rows[0].layer, [tokens_of(row.copied) for row in rows]
        longest = max(lengths)
        coming = longest + max(row.coming_tokens for row in rows)
        private = PaddedRows([longest - length for length in lengths], longest, coming)
        for index, row in enumerate(rows):
            position = private.padding[index]
            for run in row.copied:
                private.write(index, position, arrays_of(run.keys_values(layer)))
                position += run.tokens
        paths = tuple(row.geometry.paths[0] for row in rows)
        return cls(layer, private, rows[0].geometry.after(paths, tuple(private.padding)), rows[0].packing)

    @property
    def geometry(self) -> BatchGeometry:
        return self._geometry

    @property
    def offset(self) -> mx.array:
        """Return the position of each row's next token."""
        return self._geometry.offsets(self._private.end)

    def update_and_fetch(self, keys: mx.array, values: mx.array) -> tuple[mx.array, mx.array]:
        """Append to each row. Return all of the rows' own keys and values. Where they are packed, nothing is
        unpacked before it is evaluated: our attention reads `packed`."""
        geometry = self._geometry
        places = geometry.places(self._private.end, *keys.shape[1:3]) if geometry.lags else None
        if self._packing is None:  # Apart: it runs for each layer in each step.
            own_keys, own_values = self._private.append((keys, values), places)
            return own_keys, own_values
        return self._fetch(self._private.append(arrays_of(packed(keys, values, self._packing)), places))

    def keys_and_values(self) -> tuple[mx.array, mx.array]:
        """Return what `update_and_fetch` returned last, for layers that use another layer's cache. Raise
        ValueError where rows share runs in place: such layers do not know of them."""
        if self.groups:
            raise ValueError("the model reads a layer's cache from another layer")
        return self._fetch(self._private.whole())

    def packed(self, keys: mx.array, values: mx.array) -> tuple[Packed, Packed] | None:
        """Return what these are unpacked from, or None if nothing is packed, or they are not what
        `update_and_fetch` returned last: some models attend to something that they have made of it. Hold it
        no longer than the call of attention: with a view of them the next step would copy all rows."""
        if self._packing is None or [id(half()) for half in self._fetched] != [id(keys), id(values)]:
            return None
        own_keys, own_values = halves_of(self._private.whole(), self._packing)
        assert isinstance(own_keys, Packed)
        assert isinstance(own_values, Packed)
        return own_keys, own_values

    def _fetch(self, arrays: Arrays) -> tuple[mx.array, mx.array]:
        keys, values = (unpacked(half) for half in halves_of(arrays, self._packing))
        if self._packing is not None:
            self._fetched = (ref(keys), ref(values))
        return keys, values

    def make_mask(self, tokens: int, return_array: bool = False, **kwargs: Any) -> Any:
        """Return the mask of the private part alone. Where no row is padded it is that of one row, None or
        "causal": an array would be read by the kernel of each layer, and CUDA has no fused kernel that takes
        one in a decode step. Otherwise it is an array, as BatchKVCache makes it; on x86 it is one for every
        chunk, because our attention would have to make it in each layer.

        Raise ValueError for a window where rows share runs in place: it would not apply to them.
        """
        if self.groups and kwargs.get("window_size") is not None:
            raise ValueError("the model has a window in the mask of a layer that keeps all tokens")
        geometry, end = self._geometry, self._private.end
        if geometry.lags:
            return geometry.mask(end, tokens, kwargs.get("window_size"))
        plain = not return_array and kwargs.get("window_size") is None and not any(geometry.padding)
        if plain and tokens == 1:
            return None
        if plain and not device().traits.exp_is_slow:
            return "causal"
        return create_causal_mask(tokens, offset=end, left_padding=geometry.left_padding, **kwargs)

    def prepare(self, *, lengths: list[int] | None = None, right_padding: list[int] | None = None) -> None:
        """Remember by how much the next chunk is padded at each row's right end."""
        self._right_padding = right_padding

    def finalize(self) -> None:
        if self._right_padding is not None:
            self.trim(self._right_padding)
            self._right_padding = None

    def trim(self, tokens: Sequence[int]) -> None:
        """Take back the last tokens of each row, the number given for each: nothing is moved, and rows that
        lose more than others lag behind them."""
        self._private.trim(tokens)
        self._change(self._geometry.paths)

    def make_room(self, tokens: int) -> None:
        """Make room for `tokens` of each row before a model call, while rows lag. The call's mask is made
        before the first layer writes, so rows cannot move within the call."""
        self._private.make_room(tokens)
        self._change(self._geometry.paths)

    def rebase(self, paths: Mapping[int, Path]) -> None:
        """Replace the shared runs of some rows by longer (or cut) ones; their private copies of these are
        dropped."""
        known = self._geometry
        grown = [0] * len(known.paths)
        for row, path in paths.items():
            grown[row] = tokens_of(path) - known.shared_tokens[row]
            assert grown[row] >= 0, "a run has more tokens than the row has computed"
        if any(grown):
            self._private.forget(grown)
        self._change(tuple(paths.get(row, path) for row, path in enumerate(known.paths)))

    def extend(self, other: BatchRows) -> None:
        self._private.join(other._private)
        self._change(self._geometry.paths + other._geometry.paths)

    def filter(self, batch_indices: list[int]) -> None:
        self._private.select(batch_indices)
        self._change(tuple(self._geometry.paths[row] for row in batch_indices))

    def extract(self, idx: int) -> Any:
        """Return a view of the row; upstream returns an aligned copy."""
        arrays = self._private.row(idx)
        private = halves_of(arrays, self._packing) if arrays else ()
        return RowView(private, self._private.padding[idx], self._geometry.shared_tokens[idx])

    def __deepcopy__(self, memo: dict[int, Any]) -> BatchRows:
        """Return a copy for BatchGenerator's split, after which each side drops some rows."""
        return BatchRows(self._layer, self._private.twin(), self._geometry, self._packing)

    @property
    def state(self) -> list[mx.array]:
        """Return the arrays to evaluate after a chunk."""
        return list(self._private.arrays)

    @property
    def nbytes(self) -> int:
        return self._private.nbytes

    def _change(self, paths: tuple[Path, ...]) -> None:
        """Set new rows, or new columns at which they begin."""
        lags = tuple(self._private.lags) if any(self._private.lags) else ()
        geometry = self._geometry.after(paths, tuple(self._private.padding), lags)
        if geometry is not self._geometry:
            self._take(geometry)

    def _take(self, geometry: BatchGeometry) -> None:
        self._geometry = geometry
        self.groups: tuple[SharedGroup, ...] = tuple(group.of_layer(self._layer) for group in geometry.groups)
