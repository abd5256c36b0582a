"""Which layers of a model can be cut at any token, and which keep a state that cannot.

Plain key-value layers can: the entries of earlier tokens never change. Sliding windows drop old tokens, and
recurrent layers fold all tokens into one state: for those the whole state is copied at checkpoints.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import mlx.core as mx
from mlx.utils import tree_flatten, tree_map
from mlx_lm.models.cache import ArraysCache, CacheList, KVCache, make_prompt_cache

from scheduler.engine.mlx.kv.batch_geometry import BatchGeometry, Path, Run
from scheduler.engine.mlx.kv.batch_rows import BatchRows, RowStart, RowView
from scheduler.engine.mlx.kv.kv_segment import KvSegment
from scheduler.engine.mlx.packed import Packing, group_of, packed, unpacked
from scheduler.engine.prefix.nodes import Lease
from scheduler.shared.row_bytes import RowBytes, Window


class RowState:
    """The state of one row's layers that cannot be cut, right after one token. It owns its arrays and is
    never mutated (mlx-lm's `merge` copies out of it)."""

    __slots__ = ("layers", "nbytes")

    def __init__(self, layers: Sequence[Any]) -> None:
        """`layers`: mlx-lm's caches of one row, from its `extract`; they are copied."""
        self.layers = tuple(_detached(layer) for layer in layers)
        arrays = [array for layer in self.layers for array in _arrays(layer)]
        mx.eval(arrays)
        self.nbytes = sum(array.nbytes for array in arrays)


class CacheLayout:
    """Which layers of one model can be cut. `needs_state`: at least one cannot."""

    def __init__(self, model: Any, packing: Packing | None = None) -> None:
        """`packing`: into what layers that can be cut pack their keys and values; None leaves them."""
        self._model = model
        self.packing = packing
        layers = make_prompt_cache(model)
        # The exact type: a subclass may drop tokens, and a CacheList may hold such a layer.
        self._cuttable = tuple(index for index, layer in enumerate(layers) if type(layer) is KVCache)
        self._stateful = tuple(index for index, layer in enumerate(layers) if type(layer) is not KVCache)
        # A recurrent layer has its states and two counters of padding, any other keys and values.
        self._state_arrays = sum(
            len(layer.cache) + 2 if isinstance(layer, ArraysCache) else 2
            for layer in leaves(layers[index] for index in self._stateful)
        )

    @property
    def needs_state(self) -> bool:
        return bool(self._stateful)

    @property
    def has_cuttable(self) -> bool:
        return bool(self._cuttable)

    @property
    def arrays(self) -> tuple[int, int]:
        """Return how many arrays a segment and a snapshot of the prefix cache have at most."""
        return (2 if self.packing is None else 4) * len(self._cuttable), self._state_arrays

    def start(
        self, lease: Lease[KvSegment, RowState] | None, shared_runs: int, coming_tokens: int
    ) -> list[Any]:
        """Return the layers of a new row that begins where `lease` ends, or at 0; the first `shared_runs`
        pieces are shared in place, the others copied."""
        layers: list[Any] = make_prompt_cache(self._model)
        path = () if lease is None else _path(lease)
        geometry = BatchGeometry((path[:shared_runs],), (0,))
        for place, index in enumerate(self._cuttable):
            layers[index] = RowStart(place, geometry, path[shared_runs:], coming_tokens, self.packing)
        if lease is not None and lease.length and self.needs_state:
            assert lease.snapshot is not None, "a prefix without the state at its end"
            for index, state in zip(self._stateful, lease.snapshot.layers, strict=True):
                layers[index] = state
        return layers

    def rebase(
        self, batch: Sequence[Any], leases: Mapping[int, tuple[Lease[KvSegment, RowState], int]]
    ) -> None:
        """Make rows of a batch, by their place in it, attend in place to the first pieces of their leases."""
        paths = {row: _path(lease)[:runs] for row, (lease, runs) in leases.items()}
        for index in self._cuttable:
            rows: BatchRows = batch[index]
            rows.rebase(paths)

    def cut(self, row: Sequence[Any], start: int, end: int) -> KvSegment:
        """Return a copy of positions [start, end) of a row that BatchGenerator extracted."""
        views: list[RowView] = [row[index] for index in self._cuttable]
        return KvSegment([view.cut(start, end) for view in views], end - start)

    def state(self, row: Sequence[Any]) -> RowState:
        """Return a copy of the row's current state."""
        return RowState([row[index] for index in self._stateful])


class RoundedCache(KVCache):  # type: ignore[misc]  # mlx-lm has no types
    """One row's cache, whose keys and values are packed and unpacked again: the reference for a batch that
    packs them."""

    def __init__(self, packing: Packing) -> None:
        super().__init__()
        self._packing = packing

    def update_and_fetch(self, keys: mx.array, values: mx.array) -> Any:
        return super().update_and_fetch(*(unpacked(half) for half in packed(keys, values, self._packing)))


def alone(model: Any, packing: Packing | None) -> list[Any]:
    """Return mlx-lm's caches for one row, with the rounding that packing makes."""
    layers: list[Any] = make_prompt_cache(model)
    return [RoundedCache(packing) if packing and type(layer) is KVCache else layer for layer in layers]


def unpackable_size(used: Sequence[Any]) -> int | None:
    """Return the size of a head that cannot be packed, of a model that has run with these caches; None if
    all can."""
    halves = [half for layer in used if type(layer) is KVCache for half in (layer.keys, layer.values)]
    sizes = [half.shape[-1] for half in halves if half is not None]
    return next((size for size in sizes if group_of(size) is None), None)


def row_bytes(used: Sequence[Any], packing: Packing | None = None) -> RowBytes:
    """Return the bytes of a row, measured on the caches of a row that the model has run with, for layers
    that pack as in CacheLayout."""
    cuttable = {id(layer) for layer in used if type(layer) is KVCache}
    token_bytes, state_bytes, windows = 0, 0, Counter[int]()
    for layer in leaves(used):
        if packing and id(layer) in cuttable and layer.keys is not None:
            keys, values = layer.keys[:, :, :1], layer.values[:, :, :1]
            token_bytes += sum(half.nbytes for half in packed(keys, values, packing))
        elif not hasattr(layer, "keys"):
            state_bytes += layer.nbytes
        elif layer.keys is not None:  # Where it is None, no layer of the model writes.
            one = (layer.keys.nbytes + layer.values.nbytes) // layer.keys.shape[2]
            # A sliding window, as both kinds of caches with that attribute name it.
            if (window := getattr(layer, "max_size", None) or getattr(layer, "chunk_size", None)) is not None:
                windows[window] += one
            else:
                token_bytes += one
    return RowBytes(token_bytes, state_bytes, tuple(Window(*window) for window in sorted(windows.items())))


def leaves(layers: Iterable[Any]) -> Iterator[Any]:
    """Yield mlx-lm's caches, with CacheLists flattened."""
    for layer in layers:
        if isinstance(layer, CacheList):
            yield from leaves(layer.caches)
        else:
            yield layer


def _path(lease: Lease[KvSegment, RowState]) -> Path:
    return tuple(Run(segment, taken) for segment, taken in lease.pieces)


def _detached(layer: Any) -> Any:
    return type(layer).from_state(
        tree_map(lambda leaf: mx.contiguous(leaf) if isinstance(leaf, mx.array) else leaf, layer.state)
    )


def _arrays(layer: Any) -> list[mx.array]:
    flat: Any = tree_flatten(layer.state)
    return [leaf for _, leaf in flat if isinstance(leaf, mx.array)]
