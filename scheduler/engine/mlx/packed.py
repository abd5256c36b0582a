"""Keys and values in 8 or 4 bits: how they are packed, and what attention reads of them.

**The rule.** A token's keys and values are packed when they are computed, each head for itself, and read
packed by every query, its own among them. So what a query reads depends on the tokens alone: not on chunks,
neighbours, prefix hits, preemption or restarts, and a segment may be cut anywhere, for no number depends on
two tokens. Nothing is packed twice.

The format is MLX's affine quantisation: groups of 64 consecutive numbers of a head, or of 32 where 64 does
not divide it, with a scale and a bias each, in the model's own type.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import reduce
from typing import Literal, NamedTuple, Self, TypeAlias

import mlx.core as mx

from scheduler.engine.mlx.device import device
from scheduler.shared.messages import KvCacheDtype

Bits: TypeAlias = Literal[8, 4]


class Packing(NamedTuple):
    """Bits of a number in keys and in values. Keys may have more, because an error in a key moves the weights
    of all tokens."""

    keys: Bits
    values: Bits


PACKINGS: Mapping[KvCacheDtype, Packing | None] = {
    "auto": None,
    "q8": Packing(8, 8),
    "k8v4": Packing(8, 4),
    "q4": Packing(4, 4),
}
_GROUPS = (64, 32)
_WORD_BITS = 32
_PIECE_PART = 16
"""Bytes of the bound on scores for each number of a piece, which so has 4 million numbers on x86. Smaller
pieces stay in the processor's cache, and still take longer: 8,000 tokens of three heads of 64 in one piece
0.84 ms, in twelve 1.46."""
_FEW_QUERIES = 32
"""Up to this number, queries of a head of keys are multiplied by codes. More are multiplied by unpacked
numbers, because scaling their products would take longer than unpacking."""
_LEAST_PIECE_TOKENS = 64


def group_of(size: int) -> int | None:
    """Return how many numbers of a head share a scale, or None for a size that cannot be packed."""
    return next((group for group in _GROUPS if size % group == 0), None)


@dataclass(frozen=True, slots=True)
class Packed:
    """Packed numbers, with the shape and the type that they have when they are unpacked: (rows, kv heads,
    tokens, size)."""

    words: mx.array
    """(rows, kv heads, tokens, size * bits / 32) uint32."""
    affine: mx.array
    """(rows, kv heads, tokens, 2 * groups): the scales, then the biases."""
    bits: Bits

    @classmethod
    def of(cls, numbers: mx.array, bits: Bits) -> Self:
        group = group_of(numbers.shape[-1])
        assert group is not None, "a head of this size cannot be packed"
        words, scales, biases = mx.quantize(numbers, group, bits)
        return cls(words, mx.concatenate([scales, biases], axis=-1), bits)

    @property
    def shape(self) -> tuple[int, int, int, int]:
        rows, heads, tokens, words = self.words.shape
        return rows, heads, tokens, words * _WORD_BITS // self.bits

    @property
    def dtype(self) -> mx.Dtype:
        """Return the type of the numbers when they are unpacked."""
        return self.affine.dtype

    @property
    def arrays(self) -> tuple[mx.array, mx.array]:
        return self.words, self.affine

    @property
    def nbytes(self) -> int:
        return self.words.nbytes + self.affine.nbytes

    def astype(self, dtype: mx.Dtype) -> Packed:
        """Return the same codes, which unpack to this type. Nothing is packed again."""
        return self if dtype == self.dtype else replace(self, affine=self.affine.astype(dtype))

    def span(self, begin: int, end: int) -> Packed:
        """Return a view of these tokens."""
        return replace(self, words=self.words[:, :, begin:end], affine=self.affine[:, :, begin:end])

    def owned(self) -> Packed:
        """Return a copy that keeps no larger array alive."""
        return replace(self, words=mx.contiguous(self.words), affine=mx.contiguous(self.affine))

    def unpacked(self) -> mx.array:
        """Return the numbers. On a CPU `mx.dequantize` takes three to five times as long as these few passes:
        1.3 ms instead of 0.4 for 1,536,000 numbers."""
        rows, heads, tokens, size = self.shape
        if self.bits == 4 or device().traits.kind != "cpu":
            return mx.dequantize(self.words, *self._scales_and_biases, self._group, self.bits)
        scales, biases = (part[..., None] for part in self._scales_and_biases)
        numbers = mx.view(self.words, mx.uint8).reshape(rows, heads, tokens, -1, self._group)
        return (numbers.astype(self.dtype) * scales + biases).reshape(rows, heads, tokens, size)

    def scores(self, queries: mx.array) -> mx.array:
        """Return the product of (rows, kv heads, n, size) queries with these keys: (rows, kv heads, n,
        tokens)."""
        if device().traits.multiplies_packed:
            return self._product(queries, transpose=True)
        found: list[mx.array] = []
        for piece in self._pieces():
            own = _after(found, queries)
            if queries.shape[2] > _FEW_QUERIES:
                found.append(own @ piece.unpacked().swapaxes(-1, -2))
            else:
                found.append(reduce(mx.add, piece._plane_scores(own)))
        return mx.concatenate(found, axis=-1)

    def weighted(self, weights: mx.array) -> mx.array:
        """Return the sums of these values by (rows, kv heads, n, tokens) weights: (rows, kv heads, n,
        size)."""
        if device().traits.multiplies_packed:
            return self._product(weights, transpose=False)
        begin, found = 0, list[mx.array]()
        for piece in self._pieces():
            end = begin + piece.shape[2]
            own = _after(found, weights[..., begin:end])
            few = weights.shape[2] <= _FEW_QUERIES
            found.append(piece._plane_sums(own) if few else own @ piece.unpacked())
            begin = end
        return reduce(mx.add, found)

    def _pieces(self) -> Iterator[Packed]:
        rows, heads, tokens, size = self.shape
        most = max(_LEAST_PIECE_TOKENS, device().score_bytes // _PIECE_PART // (rows * heads * size))
        for begin in range(0, tokens, most):
            yield self.span(begin, min(begin + most, tokens))

    def _planes(self) -> Iterator[tuple[slice, mx.array, mx.array, mx.array]]:
        """Yield, for numbers of each head that share a scale, their places in the head, the codes that they
        are packed into, (rows, kv heads, tokens, these numbers), and scale and bias, (rows, kv heads, 1,
        tokens). A product with the codes is scaled afterwards."""
        group, octets = self._group, mx.view(self.words, mx.uint8)
        scales, biases = (part.swapaxes(-1, -2)[:, :, :, None] for part in self._scales_and_biases)
        for at in range(scales.shape[2]):
            scale, bias = scales[:, :, at], biases[:, :, at]
            begin, end = at * group, (at + 1) * group
            if self.bits == 8:
                yield slice(begin, end), octets[..., begin:end].astype(self.dtype), scale, bias
            else:
                both = octets[..., begin // 2 : end // 2]
                yield slice(begin, end, 2), (both & 15).astype(self.dtype), scale, bias
                yield slice(begin + 1, end, 2), (both >> 4).astype(self.dtype), scale, bias

    def _plane_scores(self, queries: mx.array) -> Iterator[mx.array]:
        for numbers, codes, scale, bias in self._planes():
            own = queries[..., numbers]
            yield own @ codes.swapaxes(-1, -2) * scale + own.sum(-1, keepdims=True) * bias

    def _plane_sums(self, weights: mx.array) -> mx.array:
        found = [
            (weights * scale) @ codes + weights @ bias.swapaxes(-1, -2)
            for _, codes, scale, bias in self._planes()
        ]
        if self.bits == 4:  # Every second number comes from the other half of an octet.
            halves = zip(found[::2], found[1::2], strict=True)
            found = [mx.stack([even, odd], axis=-1).flatten(-2) for even, odd in halves]
        return mx.concatenate(found, axis=-1)

    def _product(self, left: mx.array, transpose: bool) -> mx.array:
        # Scales and biases are copied to be contiguous by themselves; the words, 16 times as much, lie so.
        scales, biases = (mx.contiguous(part) for part in self._scales_and_biases)
        return mx.quantized_matmul(
            left, self.words, scales, biases, transpose=transpose, group_size=self._group, bits=self.bits
        )

    @property
    def _scales_and_biases(self) -> tuple[mx.array, mx.array]:
        groups = self.affine.shape[-1] // 2
        return self.affine[..., :groups], self.affine[..., groups:]

    @property
    def _group(self) -> int:
        return 2 * self.shape[-1] // self.affine.shape[-1]


def _after(done: Sequence[mx.array], numbers: mx.array) -> mx.array:
    """Return `numbers`, to be computed after the last of `done`: MLX walks a graph breadth first, and would
    unpack all pieces before it multiplied the first."""
    return mx.depends(numbers, list(done[-1:])) if done else numbers


Numbers: TypeAlias = mx.array | Packed
"""(rows, kv heads, tokens, size): one half, keys or values, of a layer."""


KeysValues: TypeAlias = tuple[Numbers, Numbers]
"""One layer's run: MLA's halves differ in the last axis."""


def packed(keys: mx.array, values: mx.array, packing: Packing | None) -> KeysValues:
    if packing is None:
        return keys, values
    return Packed.of(keys, packing.keys), Packed.of(values, packing.values)


def span_of(numbers: Numbers, begin: int, end: int) -> Numbers:
    """Return a view of these tokens."""
    return numbers.span(begin, end) if isinstance(numbers, Packed) else numbers[:, :, begin:end]


def owned(numbers: Numbers) -> Numbers:
    """Return a copy that keeps no larger array alive."""
    return numbers.owned() if isinstance(numbers, Packed) else mx.contiguous(numbers)


def unpacked(numbers: Numbers) -> mx.array:
    return numbers.unpacked() if isinstance(numbers, Packed) else numbers


def arrays_of(halves: KeysValues) -> tuple[mx.array, ...]:
    """Return the arrays that hold them, the keys' first."""
    return tuple(array for half in halves for array in (half.arrays if isinstance(half, Packed) else (half,)))


def halves_of(arrays: Sequence[mx.array], packing: Packing | None) -> KeysValues:
    """Return the inverse of `arrays_of`."""
    if packing is None:
        keys, values = arrays
        return keys, values
    key_words, key_affine, value_words, value_affine = arrays
    return Packed(key_words, key_affine, packing.keys), Packed(value_words, value_affine, packing.values)
