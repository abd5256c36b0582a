"""An engine whose requests have adapters, and the tokens of mlx-lm's own LoRA layers for each."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import mlx.core as mx
from mlx.nn.layers.quantized import quantize
from mlx.utils import tree_flatten
from mlx_lm.generate import generate_step
from mlx_lm.tuner.utils import linear_to_lora_layers, load_adapters

from scheduler.shared.adapter_files import fingerprint
from scheduler.shared.messages import AdapterSource, Submit
from tests.scheduler.engine.mlx.families import fused, random_model
from tests.scheduler.engine.mlx.reuse import ReuseEngine


def source_of(folder: Path) -> AdapterSource:
    return AdapterSource(folder.name, str(folder), fingerprint(folder))


def write_adapter(
    model: Any,
    folder: Path,
    *,
    seed: int = 1,
    rank: int = 4,
    scale: float = 2.0,
    layers: int = -1,
    keys: list[str] | None = None,
    changes: dict[str, Any] | None = None,
) -> AdapterSource:
    """As mlx-lm writes it, with random factors that are not zero. `model` gets mlx-lm's layers. `changes`: of
    the configuration."""
    lora = {"rank": rank, "scale": scale, "dropout": 0.0} | ({"keys": keys} if keys is not None else {})
    linear_to_lora_layers(model, layers, lora)
    mx.random.seed(seed)
    factors = {
        name: mx.random.normal(value.shape) * value.shape[-1] ** -0.5
        for name, value in _flat(model)
        if name.rpartition(".")[2] in ("lora_a", "lora_b")
    }
    folder.mkdir(parents=True, exist_ok=True)
    mx.save_safetensors(str(folder / "adapters.safetensors"), factors)
    config = {"fine_tune_type": "lora", "num_layers": layers, "lora_parameters": lora} | (changes or {})
    (folder / "adapter_config.json").write_text(json.dumps(config))
    return source_of(folder)


def _flat(model: Any) -> list[tuple[str, mx.array]]:
    flat: Any = tree_flatten(model.parameters())
    return list(flat)


def quantised(family: str) -> Any:
    """In 4 bits, where a layer's size allows."""
    model = random_model(family)
    quantize(model, group_size=32, bits=4, class_predicate=lambda _, module: hasattr(module, "to_quantized"))
    return model


class AdaptedEngine(ReuseEngine):
    """`sources`: its adapters. The oracle is a model of its own for each, made by `make`."""

    def __init__(
        self, family: str, *sources: AdapterSource, make: Callable[[str], Any] = random_model, **changes: Any
    ) -> None:
        super().__init__(fused(make(family)), family, **changes)
        self.sources = sources
        self._oracles = {"": make(family)}
        self._answers: dict[tuple[str, tuple[int, ...]], list[int]] = {}
        """The longest so far: a shorter one is its beginning."""
        for source in sources:
            self.load(source)
            self._oracles[source.key] = load_adapters(make(family), source.folder)

    def load(self, source: AdapterSource) -> None:
        self.backend._adapters.load(source)

    def alone(self, submit: Submit) -> list[int]:
        key = (submit.adapter, tuple(submit.prompt))
        if len(self._answers.get(key, ())) < submit.max_tokens:
            prompt, model = mx.array(submit.prompt.tolist()), self._oracles[submit.adapter]
            steps = generate_step(prompt, model, max_tokens=submit.max_tokens, prefill_step_size=256)
            self._answers[key] = [token for token, _ in steps]
        return self._answers[key][: submit.max_tokens]
