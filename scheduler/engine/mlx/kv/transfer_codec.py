"""Records of exported prefixes from segments and states, and back, checked against the model's own layers."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import mlx.core as mx
from mlx.utils import tree_flatten
from mlx_lm.models.cache import KVCache

from scheduler.engine.disk.block_file import Content
from scheduler.engine.mlx.kv.cache_layout import RowState, leaves
from scheduler.engine.mlx.kv.content_codec import Pieces, layers_of, span_content, state_content, state_of
from scheduler.engine.mlx.kv.kv_segment import KeysValues, KvSegment

_FIXED = ("keep", "max_size", "chunk_size", "group_size", "bits")
"""What mlx-lm's caches are made with."""
_POSITIONS = 2
"""The axis of positions in keys and values, windows' included."""


class TransferCodec:
    """A `PrefixCodec` of one model."""

    def __init__(self, one_token: Sequence[Any], token_bytes: int, identity: Mapping[str, str]) -> None:
        """`one_token`: mlx-lm's caches of a row that the model has run with."""
        # As `CacheLayout` divides them.
        cuttable = [layer for layer in one_token if type(layer) is KVCache]
        self._shapes = [(_shape(layer.keys), _shape(layer.values)) for layer in cuttable]
        self._states = [_described(layer) for layer in one_token if type(layer) is not KVCache]
        self._token_bytes = token_bytes if cuttable else 0
        self._identity = identity

    @property
    def identity(self) -> Mapping[str, str]:
        return self._identity

    @property
    def token_bytes(self) -> int:
        return self._token_bytes

    @property
    def needs_state(self) -> bool:
        return bool(self._states)

    def span(self, pieces: Pieces, start: int, end: int) -> Content:
        return Content(span_content(pieces, start, end))

    def check_span(self, span: Content, tokens: int) -> None:
        layers = layers_of(span)
        found = [(_shape(keys), _shape(values)) for keys, values in layers]
        if found != self._shapes or any(
            array.shape[0] != 1 or array.shape[_POSITIONS] != tokens for layer in layers for array in layer
        ):
            raise ValueError("its keys and values have other shapes")

    def segment(self, spans: Iterable[Content], skip: int, tokens: int) -> KvSegment:
        parts = [layers_of(span) for span in spans]
        taken = slice(skip, skip + tokens)
        layers: list[KeysValues] = []
        for place in range(len(self._shapes)):
            keys = mx.concatenate([part[place][0] for part in parts], axis=_POSITIONS)
            values = mx.concatenate([part[place][1] for part in parts], axis=_POSITIONS)
            layers.append((keys[:, :, taken], values[:, :, taken]))
        return KvSegment(layers, tokens)

    def state(self, snapshot: RowState) -> Content:
        return state_content(snapshot, {})

    def snapshot(self, state: Content, tokens: int) -> RowState:
        restored = state_of(state)
        if [_described(layer) for layer in restored.layers] != self._states:
            raise ValueError("its state has other shapes")
        if not all(_ends_at(layer, tokens) for layer in leaves(restored.layers)):
            raise ValueError("its state is of another position")
        return restored


def _shape(array: mx.array) -> tuple[Any, ...]:
    """All that does not depend on how many positions there are."""
    if array.ndim != 4:
        raise ValueError("keys and values have four axes")
    return array.dtype, array.shape[1], array.shape[3]


def _described(layer: Any) -> list[Any]:
    """A cache of one row: its class, its fixed sizes, and its arrays but for their positions."""
    flat: Any = tree_flatten(layer.state)
    arrays = [leaf for _, leaf in flat if isinstance(leaf, mx.array)]
    fixed = [[getattr(leaf, name, None) for name in _FIXED] for leaf in leaves([layer])]
    shapes = [_shape(array) if array.ndim == 4 else (array.dtype, *array.shape) for array in arrays]
    return [type(layer).__name__, *fixed, *shapes]


def _ends_at(layer: Any, tokens: int) -> bool:
    """Whether a window is right after this many tokens; a recurrent state does not say."""
    if (offset := getattr(layer, "offset", None)) is None:
        return True
    held = layer.keys.shape[_POSITIONS]
    inside = 0 <= getattr(layer, "_idx", 0) <= held and 0 <= getattr(layer, "start_position", 0) <= offset
    return bool(offset == tokens and 0 < held <= tokens and inside)
