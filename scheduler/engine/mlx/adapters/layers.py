"""The layers of a model that adapters change: the base's product once for all rows, then each row's own
low-rank part.

A layer keeps its weights and gets another class, a subclass of its own, so that nothing else that looks at
the model sees a difference. The factors of all adapters are stacked. A gathered product takes each row's; in
a decode step with few adapters one product takes all of them, and other adapters' parts are then masked:
either is a few operations, whatever the number of adapters. Slot 0 is of zeros, for rows without one: their
outputs are the base's to the bit. The formula is mlx-lm's (`mlx_lm/tuner/lora.py`), with its types and order;
its layers know one adapter, which all rows get.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any

import mlx.core as mx
from mlx.nn.layers.embedding import Embedding
from mlx.nn.layers.linear import Linear
from mlx.nn.layers.quantized import QuantizedEmbedding, QuantizedLinear
from mlx_lm.models.switch_layers import QuantizedSwitchLinear, SwitchGLU, SwitchLinear, SwitchMLP

from scheduler.engine.mlx.adapters.selection import Current, Selection
from scheduler.shared.adapter_files import AdapterRefused

_MOST_DENSE = 256
"""Most ranks of all slots together with which a decode step computes all of them. With 32 rows and 768 inputs
that takes half the time of a gathered product at 40 ranks, and twice its time at 272."""


class Factors:
    """The stacked factors of one layer. `a` and `b`: (slots, ...) as the kind's `stacked` has them, in the
    type in which the layer computes, padded with zeros to the highest rank."""

    def __init__(self, name: str, current: Current, slots: int, kind: type[Layer], like: mx.array) -> None:
        """`slots`: how many there are so far, none with a part in this layer. `like`: an array of its
        type."""
        self.name = name
        self.current = current
        self.slots = slots
        self._kind = kind
        self._dtype = like.dtype
        self.a: mx.array | None = None
        self.b: mx.array | None = None

    @property
    def nbytes(self) -> int:
        return sum(0 if one is None else one.nbytes for one in (self.a, self.b))

    def add(self, factors: tuple[mx.array, mx.array] | None) -> None:
        """Add one slot; None is an adapter without a part in this layer."""
        if factors is not None or self.a is not None:
            a, b = (None, None) if factors is None else self._kind.stacked(*factors)
            self.a = self._joined(self.a, a, self._kind.rank_axis_a)
            self.b = self._joined(self.b, b, self._kind.rank_axis_b)
        self.slots += 1

    def _joined(self, stack: mx.array | None, new: mx.array | None, axis: int) -> mx.array:
        """Return `stack` with one more slot: `new`, or zeros for None. `axis`: the rank's axis in the
        stack."""
        known = stack if new is None else new[None]
        assert known is not None
        shape = list(known.shape)
        shape[axis] = max(shape[axis], 0 if stack is None else stack.shape[axis])
        before = mx.zeros((self.slots, *shape[1:]), self._dtype) if stack is None else stack
        added = mx.zeros((1, *shape[1:]), before.dtype) if new is None else new[None]
        # The type to which MLX promotes the factors of a product.
        dtype = (mx.zeros((), before.dtype) + mx.zeros((), added.dtype)).dtype
        return mx.concatenate([_padded(one, axis, shape[axis]).astype(dtype) for one in (before, added)])

    def remove(self, slot: int) -> None:
        """Remove a slot; those after it move to the places before theirs. A slot that was not added yet,
        because its load failed before, changes nothing."""
        if slot >= self.slots:
            return
        self.slots -= 1
        if self.a is None or self.b is None:
            return
        if self.slots == 1:
            self.a = self.b = None  # Only the zeros are left.
            return
        keep = mx.array([place for place in range(self.slots + 1) if place != slot])
        self.a, self.b = self.a[keep], self.b[keep]

    def chosen(self) -> tuple[mx.array, mx.array, Selection] | None:
        """Return the stacks and the rows' selection; None where there is nothing to add."""
        selection = self.current.selection
        if selection is None or self.a is None or self.b is None:
            return None
        self.current.called.add(self.name)
        return self.a, self.b, selection


def _padded(array: mx.array, axis: int, rank: int) -> mx.array:
    if array.shape[axis] == rank:
        return array
    widths = [(0, 0)] * array.ndim
    widths[axis] = (0, rank - array.shape[axis])
    return mx.pad(array, widths)


def _product(x: mx.array, stack: mx.array, slots: mx.array) -> mx.array:
    """`x @ stack[slot]` with each leading place's slot."""
    if mx.default_device() == mx.cpu and not x.dtype == stack.dtype == mx.float32:
        # MLX's gathered product on a CPU is for float32. Not a trait, which tests force: MLX itself decides.
        return x @ stack[slots]
    return mx.gather_mm(x, stack, rhs_indices=slots)


class Layer(ABC):
    """What the classes of adapted layers share. `rank_axis_a`, `rank_axis_b`: the axis of the rank in each
    stack."""

    rank_axis_a = 2
    rank_axis_b = 1
    adapters: Factors

    @staticmethod
    @abstractmethod
    def shapes(base: Any, rank: int) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """Return the shapes of `lora_a` and `lora_b`."""

    @staticmethod
    def stacked(a: mx.array, b: mx.array) -> tuple[mx.array, mx.array]:
        return a, b


class AdaptedLinear(Layer):
    """A linear layer. Its stacks are (slots, rank, inputs) and (slots, rank, outputs), and each is one matrix
    of all slots as well."""

    rank_axis_a = 1

    @staticmethod
    def stacked(a: mx.array, b: mx.array) -> tuple[mx.array, mx.array]:
        return a.T, b

    @staticmethod
    def shapes(base: Any, rank: int) -> tuple[tuple[int, ...], tuple[int, ...]]:
        outputs, inputs = _dims(base)
        return (inputs, rank), (rank, outputs)

    def __call__(self, x: mx.array) -> mx.array:
        y: mx.array = super().__call__(x)  # type: ignore[misc]
        if (chosen := self.adapters.chosen()) is None:
            return y
        a, b, now = chosen
        rows = x.reshape(now.rows, -1, x.shape[-1])
        slots, rank, inputs = a.shape
        if rows.shape[1] == 1 and slots * rank <= _MOST_DENSE:
            z = mx.where(now.own_ranks(rank), rows @ a.reshape(-1, inputs).T, mx.array(0, a.dtype))
            z = z @ b.reshape(slots * rank, -1)
        else:
            z = _product(_product(rows, a.swapaxes(-1, -2), now.slots), b, now.slots)
        return y + _scaled(z, now.scales).astype(x.dtype).reshape(y.shape)


class AdaptedEmbedding(Layer):
    @staticmethod
    def shapes(base: Any, rank: int) -> tuple[tuple[int, ...], tuple[int, ...]]:
        tokens, dims = _dims(base)
        return (tokens, rank), (rank, dims)

    def __call__(self, x: mx.array) -> mx.array:
        y: mx.array = super().__call__(x)  # type: ignore[misc]
        if (chosen := self.adapters.chosen()) is None:
            return y
        a, b, now = chosen
        ids = x.reshape(now.rows, -1)
        z = _product(a[now.slots[:, None], ids], b, now.slots)
        return y + _scaled(z, now.scales).astype(y.dtype).reshape(y.shape)

    def as_linear(self, x: mx.array) -> mx.array:
        y: mx.array = super().as_linear(x)  # type: ignore[misc]
        if (chosen := self.adapters.chosen()) is None:
            return y
        a, b, now = chosen
        rows = x.reshape(now.rows, -1, x.shape[-1])
        z = _product(_product(rows, b.swapaxes(-1, -2), now.slots), a.swapaxes(-1, -2), now.slots)
        return y + _scaled(z, now.scales).astype(x.dtype).reshape(y.shape)


class AdaptedExperts(Layer):
    """Each expert of each adapter is one matrix of the gathered product."""

    rank_axis_a = 2
    rank_axis_b = 3

    @staticmethod
    def shapes(base: Any, rank: int) -> tuple[tuple[int, ...], tuple[int, ...]]:
        experts, outputs, inputs = base.num_experts, base.output_dims, base.input_dims
        return (experts, rank, inputs), (experts, outputs, rank)

    def __call__(self, x: mx.array, indices: mx.array, sorted_indices: bool = False) -> mx.array:
        y: mx.array = super().__call__(x, indices, sorted_indices=sorted_indices)  # type: ignore[misc]
        if (chosen := self.adapters.chosen()) is None:
            return y
        a, b, now = chosen
        if sorted_indices:
            slots = self.adapters.current.sorted_slots
            if slots is None:
                raise AdapterRefused(f"{self.adapters.name} sorts its inputs in a way that is not known here")
        else:
            slots = mx.repeat(now.slots, indices.size // now.rows).reshape(indices.shape)
        experts = a.shape[1]
        at = slots * experts + indices
        z = _product(x, a.reshape(-1, *a.shape[2:]).swapaxes(-1, -2), at)
        z = _product(z, b.reshape(-1, *b.shape[2:]).swapaxes(-1, -2), at)
        return y + _scaled(z, now.slot_scales[slots][..., None, None]).astype(x.dtype)


class SortingExperts:
    """A layer of experts some of whose parts are adapted: it reports the order in which it sorts its
    inputs."""

    current: Current

    def __call__(self, x: mx.array, indices: mx.array) -> mx.array:
        with self.current.sorted_by_expert(indices):
            y: mx.array = super().__call__(x, indices)  # type: ignore[misc]
        return y


def _scaled(z: mx.array, scales: mx.array) -> mx.array:
    """Return `scales * z` in the type of `z`, as mlx-lm's product with a Python number has it."""
    return scales.astype(z.dtype) * z


def _dims(base: Any) -> tuple[int, int]:
    """Return outputs and inputs of a linear layer, tokens and size of an embedding."""
    outputs, inputs = base.weight.shape
    return outputs, inputs * 32 // base.bits if hasattr(base, "bits") else inputs


_KINDS: tuple[tuple[type[Any], type[Layer]], ...] = (
    (Linear, AdaptedLinear),
    (QuantizedLinear, AdaptedLinear),
    (Embedding, AdaptedEmbedding),
    (QuantizedEmbedding, AdaptedEmbedding),
    (SwitchLinear, AdaptedExperts),
    (QuantizedSwitchLinear, AdaptedExperts),
)
_SORTING = (SwitchGLU, SwitchMLP)
_subclasses: dict[tuple[type[Any], type[Any]], type[Any]] = {}


def kind_of(module: Any) -> type[Layer] | None:
    """Return how this module is adapted, or None if it cannot be. Modules with a LoRA layer of their own in
    mlx-lm know one adapter only."""
    if hasattr(module, "to_lora"):
        return None
    return next((ours for base, ours in _KINDS if isinstance(module, base)), None)


def adapt(name: str, module: Any, current: Current, slots: int) -> Factors:
    """Make this layer apply adapters, if it does not yet, and return its factors."""
    if isinstance(module, Layer):
        return module.adapters
    kind = kind_of(module)
    assert kind is not None, f"{name} cannot be adapted"
    like = module.scales if hasattr(module, "bits") else module.weight
    module.__class__ = _subclass(kind, type(module))
    module.adapters = Factors(name, current, slots, kind, like)
    found: Factors = module.adapters
    return found


def adapt_sorting(module: Any, current: Current) -> None:
    """Let `module`, which contains an adapted layer, report how it sorts its inputs by expert, if it does."""
    if isinstance(module, _SORTING) and not isinstance(module, SortingExperts):
        module.__class__ = _subclass(SortingExperts, type(module))
        module.current = current


def _subclass(ours: type[Any], base: type[Any]) -> type[Any]:
    if (ours, base) not in _subclasses:
        _subclasses[ours, base] = type(f"{ours.__name__}Of{base.__name__}", (ours, base), {})
    return _subclasses[ours, base]
