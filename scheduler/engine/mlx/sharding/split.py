"""Gives a rank its part of a model, before any weight is read.

By mlx-lm's own `shard` where the module has it (each rank has a part of every layer's heads, experts and
feed-forward), else by its `pipeline` (each rank has some of the layers). Both are written on weights that are
not evaluated, so a rank reads one whole tensor at a time and keeps its part. What does not divide is refused
by name: some modules would compute wrong numbers with it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal, TypeAlias

import mlx.core as mx
from mlx.utils import tree_map
from mlx_lm.models.cache import make_prompt_cache

from scheduler.engine.mlx.sharding.rank import RanksUnusable

Way: TypeAlias = Literal["tensor", "pipeline"]

_HEADS = ("heads", "o_groups")
"""Ends of the names of counts that `shard` divides."""

WRONG: dict[str, str] = {}
"""By module of mlx-lm 0.32.2: why its ranks compute other numbers than one process does."""

_INSTEAD = "serve it without --ranks, or a smaller or quantised form of it"


def way_of(model: Any) -> Way:
    """Raises RanksUnusable for a module that cannot be split, or is known to be wrong."""
    module = type(model).__module__.rpartition(".")[2]
    if reason := WRONG.get(module):
        raise RanksUnusable(f"mlx-lm's {module} is wrong over ranks: {reason}; {_INSTEAD}")
    if hasattr(model, "shard"):
        return "tensor"
    if hasattr(_body(model), "pipeline"):
        return "pipeline"
    raise RanksUnusable(f"mlx-lm cannot split {module} over ranks: {_INSTEAD}")


def split(model: Any, group: mx.distributed.Group) -> Way:
    """Leave this rank's part of the model, unevaluated. Raises RanksUnusable, with the model half split."""
    way = way_of(model)
    try:
        if way == "tensor":
            _shard(model, group)
        else:
            _pipeline(model, group)
    except (ValueError, AssertionError, RuntimeError, TypeError, AttributeError, IndexError) as error:
        module = type(model).__module__.rpartition(".")[2]
        raise RanksUnusable(
            f"{module} does not divide into {group.size()} ranks ({error}): another number of them may do,"
            f" or {_INSTEAD}"
        ) from error
    # A slice of whole rows would keep the whole tensor in memory.
    model.update(tree_map(_own, model.parameters()))
    return way


def _own(value: Any) -> Any:
    return mx.contiguous(value) if isinstance(value, mx.array) else value


def _body(model: Any) -> Any:
    return getattr(model, "model", None)


def _shard(model: Any, group: mx.distributed.Group) -> None:
    before = _counts(model)
    model.shard(group)
    ranks = group.size()
    for name, count in _counts(model).items():
        if (whole := before.get(name, count)) != count and not _divided(whole, count, ranks):
            raise ValueError(f"{name} is {whole}")


def _divided(whole: int, part: int, ranks: int) -> bool:
    """Where there are fewer heads than ranks, a module may give some ranks the same one."""
    return part * ranks == whole or (part == 1 and whole < ranks and ranks % whole == 0)


def _counts(model: Any) -> Mapping[str, int]:
    """By path: how many heads each part says it has."""
    return {
        f"{path}.{name}": value
        for path, part in model.named_modules()
        for name, value in vars(part).items()
        if name.endswith(_HEADS) and type(value) is int
    }


def _pipeline(model: Any, group: mx.distributed.Group) -> None:
    """Each rank's layers have caches of the same kinds: the prefix cache counts bytes, and must evict the
    same on all."""
    kinds = [type(cache).__name__ for cache in make_prompt_cache(model)]
    ranks = group.size()
    each, rest = divmod(len(kinds), ranks)
    if rest or len({tuple(kinds[at : at + each]) for at in range(0, len(kinds), each)}) != 1:
        raise ValueError(f"{len(kinds)} layers with caches of {', '.join(sorted(set(kinds)))}")
    body = _body(model)
    body.pipeline(group)
    if body.end_idx - body.start_idx != each:
        raise ValueError(f"mlx-lm gives a rank {body.end_idx - body.start_idx} of {len(kinds)} layers")
