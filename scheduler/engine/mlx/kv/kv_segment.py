"""Keys and values of consecutive tokens in the prefix cache, in the layers that can be cut.

We have run it on the CPU build only; Metal and CUDA take the same calls.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeAlias

import mlx.core as mx

KeysValues: TypeAlias = tuple[mx.array, mx.array]
"""One layer's run of one row: (1, kv heads, tokens, head size) each; MLA's halves differ in the last axis."""


class KvSegment:
    """Owns its arrays: contiguous, computed, and views of nothing. Never mutated."""

    __slots__ = ("layers", "nbytes", "tokens")

    def __init__(self, layers: Sequence[KeysValues], tokens: int) -> None:
        """`layers` may be lazy views; they are copied. Empty for a model whose layers all keep states."""
        self.layers = tuple((mx.contiguous(keys), mx.contiguous(values)) for keys, values in layers)
        self.tokens = tokens
        # Now: a lazy copy would keep the row's whole buffer alive, and the next step's write into that buffer
        # would copy all rows (MLX writes in place only if there is no other reference to the array).
        mx.eval(self.layers)
        self.nbytes = sum(keys.nbytes + values.nbytes for keys, values in self.layers)

    def split(self, at: int) -> tuple[KvSegment, KvSegment]:
        """Return the first `at` tokens and the rest."""
        head = [(keys[..., :at, :], values[..., :at, :]) for keys, values in self.layers]
        tail = [(keys[..., at:, :], values[..., at:, :]) for keys, values in self.layers]
        return KvSegment(head, at), KvSegment(tail, self.tokens - at)
