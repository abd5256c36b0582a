"""Keys and values of consecutive tokens in the prefix cache, in the layers that can be cut.

We have run it on the CPU build only; Metal and CUDA take the same calls.
"""

from __future__ import annotations

from collections.abc import Sequence

import mlx.core as mx

from scheduler.engine.mlx.packed import KeysValues, arrays_of, owned, span_of


class KvSegment:
    """Keys and values of one run of tokens. It owns its arrays, which are contiguous, computed, and views of
    nothing, and is never mutated."""

    __slots__ = ("layers", "nbytes", "tokens")

    def __init__(self, layers: Sequence[KeysValues], tokens: int) -> None:
        """`layers` may be lazy views; they are copied. Empty for a model whose layers all keep states."""
        self.layers = tuple((owned(keys), owned(values)) for keys, values in layers)
        self.tokens = tokens
        # Evaluate now: a lazy copy would keep the row's whole buffer alive, and the next step's write into
        # that buffer would copy all rows (MLX writes in place only if there is no other reference to the
        # array).
        mx.eval([arrays_of(layer) for layer in self.layers])
        self.nbytes = sum(keys.nbytes + values.nbytes for keys, values in self.layers)

    def split(self, at: int) -> tuple[KvSegment, KvSegment]:
        """Return the first `at` tokens and the rest."""
        return KvSegment(self.span(0, at), at), KvSegment(self.span(at, self.tokens), self.tokens - at)

    def span(self, begin: int, end: int) -> list[KeysValues]:
        """Return views of these tokens, by layer."""
        return [(span_of(keys, begin, end), span_of(values, begin, end)) for keys, values in self.layers]
