"""Converts segments and states between device arrays and the bytes that the disk tier writes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import mlx.core as mx
import numpy as np
from mlx.utils import tree_map
from mlx_lm.models import cache as mlx_caches

from scheduler.engine.disk.block_file import Content, HostArray
from scheduler.engine.mlx.kv.cache_layout import RowState
from scheduler.engine.mlx.kv.kv_segment import KvSegment
from scheduler.engine.mlx.packed import KeysValues, Packing, arrays_of, halves_of

_NAMES = {
    mx.float32: "F32",
    mx.float16: "F16",
    mx.bfloat16: "BF16",
    mx.uint32: "U32",
    mx.int32: "I32",
    mx.int64: "I64",
    mx.uint8: "U8",
    mx.bool_: "BOOL",
}
_DTYPES = {name: dtype for dtype, name in _NAMES.items()}
_NUMPY = {"F32": "<f4", "F16": "<f2", "BF16": "<u2", "U32": "<u4", "I32": "<i4", "I64": "<i8", "U8": "u1"}

_LAYERS: dict[str, Any] = {
    kind.__name__: kind
    for kind in (
        mlx_caches.ArraysCache,
        mlx_caches.CacheList,
        mlx_caches.ChunkedKVCache,
        mlx_caches.ConcatenateKVCache,
        mlx_caches.KVCache,
        mlx_caches.QuantizedKVCache,
        mlx_caches.RotatingKVCache,
    )
}
"""The only classes that a file may name: a forged file must not choose a class to call."""

_NAMES_OF = {2: ("k", "v"), 4: ("k", "ka", "v", "va")}
"""The names of a layer's arrays in a file, by how many there are: keys and values, or the two arrays of
each."""
Pieces = Sequence[tuple[KvSegment, int]]
"""Consecutive segments with the tokens used of each, as in a lease."""


def span_content(pieces: Pieces, start: int, end: int) -> dict[str, HostArray]:
    """Return keys and values of positions [start, end) of a path, by layer. Copies in host memory: no MLX
    operation is queued behind the running step (except for bfloat16, which needs one evaluation)."""
    arrays: list[mx.array] = []
    places: list[tuple[str, slice]] = []
    position = 0
    for segment, taken in pieces:
        first, last = max(start, position), min(end, position + taken)
        if first < last:
            span = slice(first - position, last - position)
            for place, halves in enumerate(segment.layers):
                found = arrays_of(halves)
                arrays += found
                places += ((f"{name}{place}", span) for name in _NAMES_OF[len(found)])
        position += taken
    parts: dict[str, list[np.ndarray[Any, Any]]] = {}
    dtypes = {name: _NAMES[array.dtype] for (name, _), array in zip(places, arrays, strict=True)}
    for (name, span), view in zip(places, _host_views(arrays), strict=True):
        parts.setdefault(name, []).append(view[:, :, span])
    return {name: _host_array(np.concatenate(found, axis=2), dtypes[name]) for name, found in parts.items()}


def layers_of(content: Content, packing: Packing | None = None) -> list[KeysValues]:
    """Return the keys and values of a block, by layer, of a model that packs them so."""
    arrays = content.arrays
    names = _NAMES_OF[2 if packing is None else 4]
    found: list[KeysValues] = []
    while f"k{(place := len(found))}" in arrays:
        halves = [_device_array(arrays[f"{name}{place}"]) for name in names]
        found.append(halves_of(halves, packing))
    return found


def state_content(state: RowState, tail: dict[str, HostArray]) -> Content:
    """Return a state, with the keys and values of layers that can be cut since the last whole block."""
    leaves: dict[str, mx.array] = {}

    def named(leaf: Any) -> Any:
        if not isinstance(leaf, mx.array):
            return leaf
        name = f"s{len(tail) + len(leaves)}"
        leaves[name] = leaf
        return {"array": name}

    layers = [[type(layer).__name__, tree_map(named, layer.state)] for layer in state.layers]
    views = _host_views([*leaves.values()])
    stored = {
        name: _host_array(view, _NAMES[leaf.dtype])
        for (name, leaf), view in zip(leaves.items(), views, strict=True)
    }
    return Content({**tail, **stored}, {"layers": layers})


def state_of(content: Content) -> RowState:
    """Return the state that `state_content` made the content of. Raise various exceptions for other
    content."""

    def restored(leaf: Any) -> Any:
        if isinstance(leaf, dict):
            return _device_array(content.arrays[leaf["array"]])
        return [restored(part) for part in leaf] if isinstance(leaf, list) else leaf

    layers = content.metadata["layers"]
    assert isinstance(layers, list)
    return RowState([_layer(name, restored(state)) for name, state in layers])


def _layer(name: Any, state: Any) -> Any:
    """Return a cache of this class with this state. Raise ValueError for a name that is not a cache class. A
    CacheList's state names the classes of its parts."""
    if name not in _LAYERS:
        raise ValueError(f"{name!r} is not a cache class")
    if name == mlx_caches.CacheList.__name__:
        for part_state, part in state:
            _layer(part, part_state)
    return _LAYERS[name].from_state(state)


def _host_views(arrays: Sequence[mx.array]) -> list[np.ndarray[Any, Any]]:
    """Return views of the arrays' own memory; read-only by convention."""
    views = [array.view(mx.uint16) if array.dtype == mx.bfloat16 else array for array in arrays]
    # Evaluate all at once: NumPy would evaluate each when it reads it, with a round trip to a GPU.
    mx.eval(views)
    return [np.array(view, copy=False) for view in views]


def _host_array(array: np.ndarray[Any, Any], dtype: str) -> HostArray:
    return HostArray(dtype, array.shape, np.ascontiguousarray(array).tobytes())


def _device_array(stored: HostArray) -> mx.array:
    if stored.dtype == "BOOL":
        return mx.array(np.frombuffer(stored.data, "u1").reshape(stored.shape)).astype(mx.bool_)
    array = mx.array(np.frombuffer(stored.data, _NUMPY[stored.dtype]).reshape(stored.shape))
    return array.view(mx.bfloat16) if stored.dtype == "BF16" else array.astype(_DTYPES[stored.dtype])
