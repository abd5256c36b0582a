"""An adapter's factors, read from its folder and held against the model before anything uses them."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import mlx.core as mx

from scheduler.engine.mlx.adapters.layers import Layer, kind_of
from scheduler.shared.adapter_files import WEIGHTS_FILE, AdapterConfig, AdapterRefused, read_config
from scheduler.shared.device_errors import is_device_error

_FACTORS = ("lora_a", "lora_b")


@dataclass(frozen=True, slots=True)
class AdapterWeights:
    """`factors`: `lora_a` and `lora_b` by the name of the layer, in the model's order."""

    scale: float
    factors: dict[str, tuple[mx.array, mx.array]]

    @property
    def nbytes(self) -> int:
        return sum(a.nbytes + b.nbytes for a, b in self.factors.values())


def read_weights(folder: Path, model: Any) -> AdapterWeights:
    """Read an adapter's factors. Raise AdapterRefused, which names the first tensor that does not fit, its
    shape and the model's."""
    config = read_config(folder)
    tensors = _tensors(folder / WEIGHTS_FILE)
    layers = _layers(model, config)
    unknown = [name for name in tensors if name.rpartition(".")[0] not in layers]
    if unknown:
        name = min(unknown, key=_in_order)
        raise AdapterRefused(f"{name} has no layer in this model" + _why(name, model, config))
    factors = {}
    for name, module in layers.items():
        found = {part: tensors.get(f"{name}.{part}") for part in _FACTORS}
        if all(tensor is None for tensor in found.values()):
            continue  # mlx-lm's layer keeps a lora_b of zeros.
        kind = kind_of(module)
        if kind is None:
            raise AdapterRefused(f"{name} is a {type(module).__name__}, which cannot share a batch")
        a, b = _checked(name, kind, module, config.rank, found)
        factors[name] = a, b
    if not factors:
        raise AdapterRefused(f"{WEIGHTS_FILE} has no lora_a and lora_b of any layer")
    _check_finite(factors)
    return AdapterWeights(config.scale, factors)


def _tensors(path: Path) -> dict[str, mx.array]:
    try:
        tensors = mx.load(str(path))
        assert isinstance(tensors, dict)
        mx.eval(tensors)  # MLX reads the file only now.
    except Exception as error:  # MLX raises several types.
        if is_device_error(error):
            raise
        raise AdapterRefused(f"{WEIGHTS_FILE} cannot be read: {error}") from error
    for name in sorted(tensors, key=_in_order):
        if name.rpartition(".")[2] not in _FACTORS:
            raise AdapterRefused(f"{name} is no factor of a LoRA layer")
        if not mx.issubdtype(tensors[name].dtype, mx.floating):
            raise AdapterRefused(f"{name} is of {str(tensors[name].dtype).removeprefix('mlx.core.')}")
    return tensors


def _layers(model: Any, config: AdapterConfig) -> dict[str, Any]:
    """Return the modules that mlx-lm's `linear_to_lora_layers` would replace, by name."""
    named = dict(_modules(model))
    names = {id(module): name for name, module in named.items()}
    found: dict[str, Any] = {}
    matched: set[str] = set()
    for layer in filter(None, model.layers[-max(config.layers, 0) :]):
        for key, module in _modules(layer):
            if key in config.keys if config.keys is not None else _convertible(module):
                found[f"{names[id(layer)]}.{key}"] = module
                matched.add(key)
    for key in config.keys or ():
        if key in named:
            found[key] = named[key]
        elif key not in matched:
            raise AdapterRefused(f"the key {key!r} names no layer of this model")
    order = {name: place for place, name in enumerate(named)}
    return dict(sorted(found.items(), key=lambda pair: order[pair[0]]))


def _modules(module: Any) -> Iterator[tuple[str, Any]]:
    """Yield the modules by name, layer 2 before layer 10."""
    yield from sorted(module.named_modules(), key=lambda pair: _in_order(pair[0]))


def _convertible(module: Any) -> bool:
    return kind_of(module) is not None or hasattr(module, "to_lora")


def _why(name: str, model: Any, config: AdapterConfig) -> str:
    if name.rpartition(".")[0] not in dict(model.named_modules()):
        return ""
    return f" by {'its keys' if config.keys is not None else 'its num_layers'} in adapter_config.json"


def _checked(
    name: str, kind: type[Layer], module: Any, rank: int, found: dict[str, mx.array | None]
) -> tuple[mx.array, mx.array]:
    pair = []
    for part, wanted in zip(_FACTORS, kind.shapes(module, rank), strict=True):
        tensor = found[part]
        if tensor is None:
            raise AdapterRefused(f"{name}.{part} is missing")
        if tensor.shape != wanted:
            shapes = f"{_size(tensor.shape)}, and the model takes {_size(wanted)} at rank {rank}"
            raise AdapterRefused(f"{name}.{part} is {shapes}")
        pair.append(tensor)
    return pair[0], pair[1]


def _check_finite(factors: dict[str, tuple[mx.array, mx.array]]) -> None:
    for name, pair in factors.items():
        for part, tensor in zip(_FACTORS, pair, strict=True):
            if not mx.all(mx.isfinite(tensor)).item():
                raise AdapterRefused(f"{name}.{part} has values that are not finite")


def _size(shape: tuple[int, ...]) -> str:
    return " x ".join(map(str, shape))


def _in_order(name: str) -> list[tuple[int, str]]:
    return [(int(part) if part.isdigit() else -1, part) for part in re.split(r"[.]", name)]
