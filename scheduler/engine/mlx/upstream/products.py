"""Linear layers in fewer operations, with the same bits: a weight is transposed once, and layers that read
the same input share one product.

mlx-lm's layers transpose their weight in each call, and multiply the same input once each (q, k and v; gate
and up). Each operation is host time. A layer keeps its weights, as views of what is held once, and gets
another class, a subclass of its own, so that adapters and whatever else looks at the model see no difference.
`../fusing.py` decides which layers.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from copy import copy
from dataclasses import dataclass
from functools import cache
from itertools import accumulate, pairwise
from math import prod
from typing import Any

import mlx.core as mx
from mlx.nn.layers.embedding import Embedding
from mlx.nn.layers.linear import Linear
from mlx.nn.layers.normalization import RMSNorm
from mlx.nn.layers.quantized import QuantizedLinear
from mlx_lm.models.switch_layers import QuantizedSwitchLinear, SwitchLinear

from scheduler.engine.mlx.device import device

FEW = 32
"""Up to this number of tokens each is probed by itself, because devices choose kernels by it."""
MANY = FEW + 1
"""Stands for any number beyond."""
_EXPERTS = (SwitchLinear, QuantizedSwitchLinear)
KINDS: tuple[type[Any], ...] = (Linear, QuantizedLinear, *_EXPERTS)
"""Layers that may share a product. The outputs are the first axis of their arrays, experts' the second."""
SORTED_FROM = 64
"""Choices of experts from which on mlx-lm sorts tokens by expert."""


class _Columns:
    """A weight and its transpose, a view. What the instance itself has is no parameter of the model."""

    columns: mx.array
    """(inputs, outputs)"""
    stacks: dict[int, tuple[mx.array, mx.array | None]]
    """What is multiplied and added, by the number of rows if each has one token, else 0: all views."""

    def product(self, x: mx.array) -> mx.array:
        shape = x.shape
        rows = shape[0] if len(shape) == 3 and shape[1] == 1 else 0
        if (stack := self.stacks.get(rows)) is None:
            stack = self.stacks[rows] = self._stack(rows)
        weight, bias = stack
        return x @ weight if bias is None else mx.addmm(bias, x, weight)

    def _stack(self, rows: int) -> tuple[mx.array, mx.array | None]:
        """Return weights of three axes where they spare two operations: MLX makes two axes of the input's
        three, and three of the product's two. A GPU multiplies one matrix of all rows then, a CPU would
        multiply each row."""
        bias = self.get("bias")  # type: ignore[attr-defined]
        if not rows or (rows > 1 and device().traits.kind == "cpu"):
            return self.columns, bias
        weight = mx.broadcast_to(self.columns, (rows, *self.columns.shape))
        return weight, None if bias is None else mx.broadcast_to(bias, (rows, 1, *bias.shape))


class TurnedLinear(_Columns, Linear):  # mlx has no types
    __call__ = _Columns.product


class TurnedEmbedding(_Columns, Embedding):
    as_linear = _Columns.product


@cache
def _inputs_of(inputs: tuple[int, ...], choices: tuple[int, ...]) -> mx.array:
    """Return which of the inputs each choice of an expert multiplies: of each token, its own."""
    each = mx.arange(prod(inputs), dtype=mx.uint32).reshape(inputs)
    return mx.broadcast_to(each, mx.broadcast_shapes(inputs, choices))


def _counted(x: mx.array, indices: mx.array, sorted_indices: bool) -> mx.array | None:
    """Return what MLX would count in each call, which a GPU does in a kernel. Sorted ones, of which there are
    many, have kernels of their own."""
    if sorted_indices or max(indices.size, x.size // x.shape[-1]) >= SORTED_FROM:
        return None
    return _inputs_of(x.shape[:-2], indices.shape)


class TurnedExperts(SwitchLinear):  # type: ignore[misc]
    columns: mx.array
    """(experts, inputs, outputs)"""

    def __call__(self, x: mx.array, indices: mx.array, sorted_indices: bool = False) -> mx.array:
        inputs = _counted(x, indices, sorted_indices)
        y = mx.gather_mm(x, self.columns, inputs, indices, sorted_indices=sorted_indices)
        return y + mx.expand_dims(self["bias"][indices], -2) if "bias" in self else y


class CountedExperts(QuantizedSwitchLinear):  # type: ignore[misc]
    def __call__(self, x: mx.array, indices: mx.array, sorted_indices: bool = False) -> mx.array:
        y = mx.gather_qmm(
            x,
            self["weight"],
            self["scales"],
            self.get("biases"),
            _counted(x, indices, sorted_indices),
            indices,
            group_size=self.group_size,
            bits=self.bits,
            mode=self.mode,
            global_scale=self.global_scale,
            sorted_indices=sorted_indices,
        )
        return y + mx.expand_dims(self["bias"][indices], -2) if "bias" in self else y


_TURNED: dict[type[Any], type[Any]] = {
    Linear: TurnedLinear,
    Embedding: TurnedEmbedding,
    SwitchLinear: TurnedExperts,
    QuantizedSwitchLinear: CountedExperts,
}


def turn(module: Any) -> None:
    """Do once what this layer does in each call: transpose its weight, count its inputs."""
    if (turned := _TURNED.get(type(module))) is None:
        return
    if turned is not CountedExperts:
        columns = module.weight.swapaxes(-1, -2)
        mx.eval(columns)
        vars(module).update(columns=columns, stacks={})
    module.__class__ = turned


@dataclass(slots=True, eq=False)
class _Share:
    """What a layer has not taken yet of the product of its group. The input (and the choice of experts) is
    held with it, so that no other array gets its identity."""

    product: Product
    x: mx.array | None = None
    indices: mx.array | None = None
    part: Any = None


class Product:
    """The product of what several layers multiply one input by."""

    def __init__(self, members: Sequence[Any]) -> None:
        """Their arrays are concatenated, and held twice until `take_over`."""
        axis = int(are_experts(members[0]))
        self.whole: Any = copy(members[0])
        for name in arrays_of(members[0]):
            self.whole[name] = mx.concatenate([member[name] for member in members], axis=axis)
        mx.eval(arrays_of(self.whole))
        turn(self.whole)
        self.exact: frozenset[int] = frozenset()
        """Numbers of tokens for which it is taken."""
        self._ends = [0, *accumulate(member.weight.shape[axis] for member in members)]
        self._shares = [_Share(self) for _ in members]

    def take_over(self, members: Sequence[Any], exact: Collection[int]) -> None:
        """Let these layers take their parts from now on, for `exact` numbers of tokens, and drop their own
        arrays for views."""
        self.exact = frozenset(exact)
        experts = are_experts(members[0])
        for member, share, ends in zip(members, self._shares, pairwise(self._ends), strict=True):
            outputs = slice(*ends)
            for name in arrays_of(member):
                whole = self.whole[name]
                member[name] = whole[:, outputs] if experts else whole[outputs]
            mx.eval(arrays_of(member))
            turn(member)
            vars(member)["share"] = share
            kind: Any = type(member)
            member.__class__ = _part_of(kind)

    def parts(self, y: mx.array) -> list[mx.array]:
        # One operation, but its views of several rows say that they are as small as their numbers. MLX's
        # rotary positions on CUDA allocate what a view says, and write it with the view's strides.
        if y.size == self._ends[-1] or device().traits.kind != "cuda":
            found: list[mx.array] = mx.split(y, self._ends[1:-1], axis=-1)  # type: ignore[assignment]
            return found
        return [y[..., slice(*ends)] for ends in pairwise(self._ends)]

    def give(self, share: _Share, y: mx.array, x: mx.array, indices: mx.array | None = None) -> mx.array:
        """Return `share`'s part of `y`, the product of `x`, and let each other layer of the group take its
        own, once."""
        for each, part in zip(self._shares, self.parts(y), strict=True):
            each.x, each.indices, each.part = x, indices, part
        own: mx.array = share.part
        share.x = share.indices = share.part = None
        return own


class _Part:
    """A layer that takes a part of a product. It calls little, for it runs in each layer of each step."""

    share: _Share

    def __call__(
        self, x: mx.array, indices: mx.array | None = None, sorted_indices: bool = False
    ) -> mx.array:
        """`indices`: of experts, which share one product for any number of tokens."""
        share = self.share
        if share.x is x and share.indices is indices:
            part: mx.array = share.part
            share.x = share.indices = share.part = None
            return part
        product = share.product
        if indices is not None:
            return product.give(share, product.whole(x, indices, sorted_indices), x, indices)
        if min(x.size // x.shape[-1], MANY) in product.exact:
            return product.give(share, product.whole(x), x)
        alone: mx.array = super().__call__(x)  # type: ignore[misc]
        return alone


@cache
def _part_of(kind: Any) -> type[Any]:
    return type(f"_PartOf{kind.__name__}", (_Part, kind), {})


def are_experts(module: Any) -> bool:
    return isinstance(module, _EXPERTS)


def arrays_of(module: Any) -> dict[str, mx.array]:
    return {name: array for name, array in module.items() if isinstance(array, mx.array)}


_SHIFTED = {
    "mlx_lm.models.gemma3_text.RMSNorm",
    "mlx_lm.models.minimax_m3_vl.GemmaRMSNorm",
    "mlx_lm.models.muse_glimmer.CenteredRMSNorm",
}
"""By name, so that no module is imported for it."""


def shift_once(model: Any) -> None:
    """Add 1 to the weight of norms that do so in each call, as Gemma's."""
    for _, part in model.named_modules():
        kind = type(part)
        if f"{kind.__module__}.{kind.__name__}" in _SHIFTED:
            part.weight = 1.0 + part.weight
            part.__class__ = RMSNorm
