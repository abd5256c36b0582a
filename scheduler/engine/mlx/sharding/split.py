"""Gives a rank its part of a model, before any weight is read.

mlx-lm's own `shard` does it where the module has it and divides (each rank has a part of every layer's heads,
experts and feed-forward), else its `pipeline` (each rank has some of the layers). Both work on weights that
are not evaluated, so a rank reads a few whole tensors at a time and keeps its part. What does not divide is
refused by name: some modules would compute wrong numbers with it.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

import mlx.core as mx
from mlx.utils import tree_map
from mlx_lm.models.cache import make_prompt_cache

from scheduler.engine.mlx.sharding.rank import RanksUnusable
from scheduler.shared.device_errors import is_device_error

Way: TypeAlias = Literal["tensor", "pipeline"]

_HEADS = ("heads", "o_groups")
"""Ends of the names of counts that `shard` divides."""

_INSTEAD = "serve it without --ranks, or a smaller or quantised form of it"


@dataclass(frozen=True, slots=True)
class _Trial:
    """What `shard` and `pipeline` ask of a group: on weights that are not evaluated they compute nothing."""

    ranks: int

    def size(self) -> int:
        return self.ranks

    def rank(self) -> int:
        return 0


def way_of(model: Any, ranks: int, backend: str = "ring") -> Way:
    """Return how this model divides into that many ranks: by heads, or by layers where that cannot be, and
    not over NCCL. Tried on a copy, which shares the weights. Raise RanksUnusable for what cannot be split."""
    module = _module_of(model)
    ways: list[Way] = []
    if hasattr(model, "shard"):
        ways.append("tensor")
    if hasattr(_body(model), "pipeline"):
        ways.append("pipeline")
    if not ways:
        raise RanksUnusable(f"mlx-lm cannot split {module} over ranks: {_INSTEAD}")
    reasons: list[str] = []
    for way in ways:
        try:
            _SPLITS[way](copy.deepcopy(model), _Trial(ranks))
        except Exception as error:  # Modules raise many types for sizes that do not divide.
            if is_device_error(error):
                raise
            reasons.append(str(error))
            continue
        if way == "pipeline" and backend == "nccl":
            raise RanksUnusable(_no_pipeline(model, ranks))
        return way
    raise RanksUnusable(
        f"{module} does not divide into {ranks} ranks ({'; '.join(reasons)}):"
        f" another number of them may do, or {_INSTEAD}"
    )


def _no_pipeline(model: Any, ranks: int) -> str:
    """Return why a model that divides by layers only cannot run over NCCL: MLX's back end has collectives,
    and neither Send nor Recv, which a pipeline is made of."""
    fitting = []
    for count in range(2, 2 * ranks + 1) if hasattr(model, "shard") else ():
        with suppress(Exception):  # Modules raise many types for sizes that do not divide.
            _shard(copy.deepcopy(model), _Trial(count))
            fitting.append(str(count))
    instead = f"take {' or '.join(fitting)} ranks, or {_INSTEAD}" if fitting else _INSTEAD
    return (
        f"{_module_of(model)} divides into {ranks} ranks by layers only, and NCCL cannot send from one rank"
        f" to the next: {instead}"
    )


def split(model: Any, group: mx.distributed.Group, way: Way) -> None:
    """Leave this rank's part of the model, unevaluated. `way`: as `way_of` returned it."""
    _SPLITS[way](model, group)
    # A slice of whole rows would keep the whole tensor in memory.
    model.update(tree_map(_own, model.parameters()))


def _module_of(model: Any) -> str:
    return type(model).__module__.rpartition(".")[2]


def _own(value: Any) -> Any:
    return mx.contiguous(value) if isinstance(value, mx.array) else value


def _body(model: Any) -> Any:
    return getattr(model, "model", None)


def _shard(model: Any, group: Any) -> None:
    before = _counts(model)
    model.shard(group)
    ranks = group.size()
    for name, count in _counts(model).items():
        if (whole := before.get(name, count)) != count and not _divided(whole, count, ranks):
            raise ValueError(f"{name} is {whole}")


def _divided(whole: int, part: int, ranks: int) -> bool:
    """Return whether the module is divided. Where there are fewer heads than ranks, it may give some ranks
    the same one."""
    return part * ranks == whole or (part == 1 and whole < ranks and ranks % whole == 0)


def _counts(model: Any) -> Mapping[str, int]:
    """Return how many heads each part has, by path."""
    return {
        f"{path}.{name}": value
        for path, part in model.named_modules()
        for name, value in vars(part).items()
        if name.endswith(_HEADS) and type(value) is int
    }


def _pipeline(model: Any, group: Any) -> None:
    """Leave this rank's layers. Raise ValueError unless all ranks' layers have caches of the same kinds: the
    prefix cache counts bytes, and must evict the same on all."""
    kinds = [type(cache).__name__ for cache in make_prompt_cache(model)]
    ranks = group.size()
    each, rest = divmod(len(kinds), ranks)
    if rest or len({tuple(kinds[at : at + each]) for at in range(0, len(kinds), each)}) != 1:
        raise ValueError(f"{len(kinds)} layers with caches of {', '.join(sorted(set(kinds)))}")
    body = _body(model)
    body.pipeline(group)
    if body.end_idx - body.start_idx != each:
        raise ValueError(f"mlx-lm gives a rank {body.end_idx - body.start_idx} of {len(kinds)} layers")


_SPLITS: dict[Way, Callable[[Any, Any], None]] = {"tensor": _shard, "pipeline": _pipeline}
