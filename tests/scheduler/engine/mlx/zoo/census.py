"""Which modules mlx-lm has, and what is known of each: every one is built, or listed with a reason."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import mlx.core as mx
import mlx_lm.models
from mlx.utils import tree_flatten

from tests.scheduler.engine.mlx.zoo import dense, recurrent, windows
from tests.scheduler.engine.mlx.zoo.tiny import configuration, random_model
from tests.scheduler.engine.mlx.zoo.weights import base_of, compute_in_float32, convert

NO_MODELS = {
    "activations": "functions",
    "base": "functions",
    "bitlinear_layers": "layers of bitnet",
    "cache": "caches",
    "gated_delta": "a kernel of recurrent layers",
    "mla": "layers of latent attention",
    "pipeline": "models over several machines",
    "rope_utils": "rotary positions",
    "ssm": "a kernel of recurrent layers",
    "switch_layers": "layers of experts",
}
"""Modules that other modules import."""
NOT_BUILT = {
    "bitnet": "makes a Metal kernel when it is created",
    "muse_spark": "makes a Metal kernel when it is created",
    "olmo": "ends the process where the package hf_olmo is not installed",
}
ENTRIES: dict[str, dict[str, Any]] = dense.ENTRIES | windows.ENTRIES | recurrent.ENTRIES
"""By module, or module+variant, for those that differ by configuration in the kind of their caches."""

SMALL = {"num_hidden_layers": 2}
"""Changes of a configuration by which a model has one layer of each of its kinds, where layers take turns."""


def modules() -> list[str]:
    """The modules of the installed mlx-lm, by name."""
    (folder,) = mlx_lm.models.__path__
    return sorted(path.stem for path in Path(folder).glob("*.py") if path.stem != "__init__")


def names() -> list[str]:
    """All that can be built, variants included."""
    built = set(modules()) - NO_MODELS.keys() - NOT_BUILT.keys()
    return sorted(built | {name for name in ENTRIES if module_of(name) in built})


def module_of(name: str) -> str:
    return base_of(name).partition("+")[0]


def build(name: str, seed: int = 0, **changes: Any) -> tuple[Any, str]:
    """The model of this name, and the model type in its configuration. float32, or as behind the name's @.
    `changes`: of its configuration."""
    config = configuration(module_of(name), ENTRIES.get(base_of(name), {}) | changes)
    model = random_model(module_of(name), config, seed)
    if weights := name.partition("@")[2]:
        convert(model, weights)
    return model, str(config["model_type"])


def build_exact(name: str, seed: int = 0, **changes: Any) -> Any:
    """The same weights, computed in float32."""
    model, _ = build(name, seed, **changes)
    compute_in_float32(model)
    return model


def write(name: str, folder: Path, **changes: Any) -> Any:
    """Write the model of this name as one that can be loaded, without a tokenizer. Return it."""
    model, _ = build(name, **changes)
    weights: Any = tree_flatten(model.parameters())
    mx.save_safetensors(str(folder / "model.safetensors"), dict(weights), metadata={"format": "mlx"})
    config = configuration(module_of(name), ENTRIES.get(base_of(name), {}) | changes)
    (folder / "config.json").write_text(json.dumps(config))
    return model
