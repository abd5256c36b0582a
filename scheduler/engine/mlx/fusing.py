"""Finds the layers of a loaded model that read the same input, and lets those share a product whose bits stay
the same.

Which layers do is seen in two model calls, of a chunk and of a token, whose graphs are built and not
evaluated: no list of names would know the next family. A device chooses kernels by the number of outputs, so
a product of more of them may add in another order. One group of each shape is therefore probed, on this
device and with its own weights, for each number of tokens up to 32 and for chunks. Its layers share a product
(`upstream/products.py`) for those whose bits are equal. What was found is kept with the verdicts of the check
at load.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import mlx.core as mx
from mlx_lm.models.cache import make_prompt_cache

from scheduler.engine.mlx.device import device
from scheduler.engine.mlx.upstream.products import (
    FEW,
    KINDS,
    MANY,
    SORTED_FROM,
    Product,
    are_experts,
    arrays_of,
    turn,
)
from scheduler.shared.device_errors import is_device_error

_CHUNKS = (48, 256)
"""Tokens of the chunks that are probed."""
Exact = dict[str, tuple[int, ...]]
"""The numbers of tokens for which a product has the bits of its parts, by its shape."""


@dataclass(frozen=True, slots=True)
class _Group:
    """Layers that read the same input, in the order in which they are called."""

    members: list[Any]
    inputs: int
    dtype: mx.Dtype
    choices: int
    """Experts of each token; 0 for other layers."""

    @property
    def shape(self) -> str:
        """Return what chooses the device's kernels."""
        arrays = [sorted(arrays_of(member).items()) for member in self.members]
        shapes = [[f"{name} {array.dtype} {array.shape}" for name, array in each] for each in arrays]
        return f"{_kind(self.members[0])} {shapes} {self.dtype} {self.choices}"


def fuse(model: Any, known: Exact) -> Exact:
    """Let the layers of this model share products, and do once what each layer does in each call. One group's
    arrays at a time are held twice. `known`: what was found before. Return what is known now."""
    try:
        groups = _groups(model)
    except Exception as error:  # Models raise many types; what does not run is the check's to say.
        if is_device_error(error):
            raise
        groups = []
    found: Exact = {}
    for group in groups:
        shape = group.shape
        exact = found.get(shape, known.get(shape))
        if exact == ():
            continue
        product = Product(group.members)
        found[shape] = exact = _exact(group, product) if exact is None else exact
        if exact:
            product.take_over(group.members, exact)
            device().free_buffers()
    for _, module in model.named_modules():
        turn(module)
        # `Module` finds its children in itself only when all else has failed: 0.4 µs, 15 times a layer.
        vars(module).update({name: child for name, child in module.items() if isinstance(child, dict | list)})
    return known | found


def _groups(model: Any) -> list[_Group]:
    """Return the groups that are the same in a chunk and in a step."""
    cache = make_prompt_cache(model)
    chunk, step = (_called(model, cache, tokens) for tokens in (3, 1))
    return [group for ids, group in step.items() if ids in chunk and len(ids) > 1]


def _called(model: Any, cache: Any, tokens: int) -> dict[tuple[int, ...], _Group]:
    """Return the layers that read the same input in a call, by their identities."""
    with _calls() as calls:
        model(mx.array([[1] * tokens]), cache=cache)
    times = Counter(id(module) for module, _, _ in calls)
    found: dict[Any, _Group] = {}
    for module, x, indices in calls:
        if (kind := _kind(module)) is not None and times[id(module)] == 1:
            choices = 0 if indices is None else indices.shape[-1]
            group = _Group([], x.shape[-1], x.dtype, choices)
            found.setdefault((id(x), id(indices), kind), group).members.append(module)
    return {tuple(map(id, group.members)): group for group in found.values()}


@contextmanager
def _calls() -> Iterator[list[tuple[Any, mx.array, mx.array | None]]]:
    """Within this block, note which layers are called with which inputs. They are held until then, so that
    none gets the identity of another."""
    calls: list[tuple[Any, mx.array, mx.array | None]] = []
    own = {kind: kind.__call__ for kind in KINDS}

    def noted(call: Any) -> Any:
        def layer(self: Any, x: mx.array, *more: Any, **fields: Any) -> Any:
            calls.append((self, x, more[0] if more else None))
            return call(self, x, *more, **fields)

        return layer

    for kind, call in own.items():
        kind.__call__ = noted(call)
    try:
        yield calls
    finally:
        for kind, call in own.items():
            kind.__call__ = call


def _kind(module: Any) -> tuple[Any, ...] | None:
    """Return what the members of a group have in common, or None for a layer that has something else."""
    arrays, axis = arrays_of(module), int(are_experts(module))
    if type(module) not in KINDS or not arrays.keys() <= {"weight", "bias", "scales", "biases"}:
        return None
    inputs = [array.shape[:axis] + array.shape[axis + 1 :] for _, array in sorted(arrays.items())]
    types = [(name, str(array.dtype)) for name, array in sorted(arrays.items())]
    quantised = [getattr(module, name, None) for name in ("bits", "group_size", "mode")]
    return type(module).__name__, *types, *inputs, *quantised


def _exact(group: _Group, product: Product) -> tuple[int, ...]:
    """Return the numbers of tokens for which the product's parts have the bits of the layers' own products.
    Experts, whose parts cannot be multiplied by themselves afterwards, share one for all or for none."""

    few = [tokens for tokens in range(1, FEW + 1) if _is_equal(group, product, tokens)]
    many = [MANY] if all(_is_equal(group, product, tokens) for tokens in _CHUNKS) else []
    if are_experts(group.members[0]) and len(few) + len(many) < MANY:
        return ()
    return (*few, *many)


def _is_equal(group: _Group, product: Product, tokens: int) -> bool:
    arguments = _random(group, tokens)
    try:
        parts = product.parts(product.whole(*arguments))
        alone = [member(*arguments) for member in group.members]
        return all(bool(mx.array_equal(part, one)) for part, one in zip(parts, alone, strict=True))
    except Exception as error:  # A product that this device cannot compute, alone or with others.
        if is_device_error(error):
            raise
        return False


def _random(group: _Group, tokens: int) -> Sequence[Any]:
    """Return the arguments of a call for this number of tokens, as mlx-lm's modules have them."""
    first, count, key = group.members[0], tokens * group.choices, mx.random.key(tokens)

    def inputs(*shape: int) -> mx.array:
        return mx.random.normal((*shape, group.inputs), key=key).astype(group.dtype)

    if not are_experts(first):
        return (inputs(tokens, 1),)
    experts = mx.random.randint(0, first.num_experts, (count,), key=key)
    if count < SORTED_FROM:
        return inputs(tokens, 1, 1, 1), experts.reshape(tokens, 1, group.choices), False
    return inputs(count, 1), mx.sort(experts), True
