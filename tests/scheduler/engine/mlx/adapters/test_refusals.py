"""A folder that does not fit the model is refused by name, with the first tensor that differs, and never
reaches a batch."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import mlx.core as mx
import pytest

from scheduler.engine.mlx.adapters.adapters import Adapters
from scheduler.shared.adapter_files import AdapterRefused
from tests.scheduler.engine.mlx.adapters.adapted import source_of, write_adapter
from tests.scheduler.engine.mlx.families import random_model

WEIGHTS = "adapters.safetensors"


def change_weights(folder: Path, change: Callable[[dict[str, mx.array]], None]) -> None:
    tensors: Any = mx.load(str(folder / WEIGHTS))
    mx.eval(tensors)
    change(tensors)
    mx.save_safetensors(str(folder / WEIGHTS), tensors)


def change_config(folder: Path, **changes: Any) -> None:
    path = folder / "adapter_config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))


def refusal(folder: Path, family: str = "qwen3") -> str:
    """And a model that is as before."""
    model = random_model(family)
    before = model(mx.array([[1, 2, 3]]))
    adapters = Adapters(model)
    source = source_of(folder)
    with pytest.raises(AdapterRefused) as refused:
        adapters.load(source)
    assert source.key not in adapters
    assert adapters.nbytes == 0
    assert mx.array_equal(model(mx.array([[1, 2, 3]])), before)
    return str(refused.value)


@pytest.fixture
def red(tmp_path: Path) -> Path:
    write_adapter(random_model("qwen3"), tmp_path / "red")
    return tmp_path / "red"


def test_an_adapter_of_another_model(tmp_path: Path) -> None:
    """The first tensor in the model's order, layer 2 before layer 10."""
    wide = random_model("qwen3", hidden_size=64)
    write_adapter(wide, tmp_path / "red")
    assert refusal(tmp_path / "red").endswith(
        "model.layers.0.mlp.down_proj.lora_b is 4 x 64, and the model takes 4 x 32 at rank 4"
    )


def _tensors(**changed: mx.array | None) -> Callable[[Path], None]:
    """Return a change to these tensors, by the layer's name in its model; what is None is taken out."""

    def change(folder: Path) -> None:
        def replaced(tensors: dict[str, mx.array]) -> None:
            tensors.update({name: array for name, array in named.items() if array is not None})
            for name in (name for name, array in named.items() if array is None):
                del tensors[name]

        change_weights(folder, replaced)

    named = {f"model.layers.{name}": array for name, array in changed.items()}
    return change


def _config(**changes: Any) -> Callable[[Path], None]:
    return lambda folder: change_config(folder, **changes)


_KEY = {"rank": 4, "scale": 1.0, "keys": ["self_attn.w_proj"]}
_WRONG: dict[str, tuple[Callable[[Path], None], str]] = {
    "a shape that is not its rank": (
        _tensors(**{"2.self_attn.q_proj.lora_a": mx.zeros((32, 5))}),
        "model.layers.2.self_attn.q_proj.lora_a is 32 x 5, and the model takes 32 x 4 at rank 4",
    ),
    "a layer that the model has not": (
        _tensors(**{"7.self_attn.q_proj.lora_a": mx.zeros((32, 4))}),
        "model.layers.7.self_attn.q_proj.lora_a has no layer in this model",
    ),
    "a layer that its configuration leaves out, as mlx-lm": (
        _config(num_layers=2),
        "model.layers.0.mlp.down_proj.lora_a has no layer in this model by its num_layers in"
        " adapter_config.json",
    ),
    "a key that names nothing": (
        _config(lora_parameters=_KEY),
        "the key 'self_attn.w_proj' names no layer of this model",
    ),
    "no factor: DoRA's magnitudes, or a whole model": (
        _tensors(**{"0.self_attn.q_proj.m": mx.zeros((32,))}),
        "model.layers.0.self_attn.q_proj.m is no factor of a LoRA layer",
    ),
    "half of a pair": (
        _tensors(**{"1.mlp.up_proj.lora_b": None}),
        "model.layers.1.mlp.up_proj.lora_b is missing",
    ),
    "values that are not finite": (
        _tensors(**{"3.self_attn.o_proj.lora_a": mx.full((32, 4), float("nan"))}),
        "model.layers.3.self_attn.o_proj.lora_a has values that are not finite",
    ),
    "integers": (
        _tensors(**{"0.self_attn.q_proj.lora_a": mx.zeros((32, 4), mx.int32)}),
        "model.layers.0.self_attn.q_proj.lora_a is of int32",
    ),
    "nothing at all": (
        lambda folder: mx.save_safetensors(str(folder / WEIGHTS), {}),
        "adapters.safetensors has no lora_a and lora_b of any layer",
    ),
}


@pytest.mark.parametrize("wrong", _WRONG)
def test_what_does_not_fit_is_named(wrong: str, red: Path) -> None:
    change, message = _WRONG[wrong]
    change(red)
    assert refusal(red).endswith(message)


@pytest.mark.parametrize("left", [0, 7, 100, 5000])
def test_a_file_that_is_cut_short(red: Path, left: int) -> None:
    (red / WEIGHTS).write_bytes((red / WEIGHTS).read_bytes()[:left])
    assert "adapters.safetensors cannot be read" in refusal(red)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "adapter_config.json is not JSON"),
        ("[]", "adapter_config.json is not an object"),
        ("{}", "has no lora_parameters"),
        ('{"fine_tune_type": "full"}', "fine_tune_type is 'full', and only 'lora' can share a batch"),
        ('{"fine_tune_type": "dora"}', "fine_tune_type is 'dora'"),
        ('{"peft_type": "LORA", "r": 8}', "has no lora_parameters: is it an adapter of mlx-lm?"),
        (
            '{"num_layers": 4, "lora_parameters": {"rank": 0, "scale": 1}}',
            "rank must be a whole number from 1",
        ),
        ('{"num_layers": 4, "lora_parameters": {"rank": 4, "scale": "x"}}', "scale must be a number"),
        ('{"num_layers": 4, "lora_parameters": {"rank": 4, "scale": Infinity}}', "scale must be a number"),
        ('{"lora_parameters": {"rank": 4, "scale": 1}}', "num_layers must be a whole number"),
        (
            '{"num_layers": 4, "lora_parameters": {"rank": 4, "scale": 1, "keys": [1]}}',
            "keys must be a list of module names",
        ),
    ],
)
def test_a_configuration_that_says_something_else(red: Path, text: str, message: str) -> None:
    (red / "adapter_config.json").write_text(text)
    assert message in refusal(red)


def test_files_that_changed_since_they_were_named(red: Path) -> None:
    source = source_of(red)
    change_weights(red, lambda tensors: tensors.update({name: 2 * value for name, value in tensors.items()}))
    adapters = Adapters(random_model("qwen3"))
    with pytest.raises(AdapterRefused, match="its files have changed since it was named"):
        adapters.load(source)
    assert source.key not in adapters


def test_a_layer_that_mixes_its_rows(red: Path) -> None:
    """Such a model is right for one row, and the probe sees that it is not for several."""
    model = random_model("qwen3")
    layer = model.layers[1].mlp

    class Mixing(type(layer)):  # type: ignore[misc]
        def __call__(self, x: mx.array) -> mx.array:
            turned: mx.array = super().__call__(x[::-1])
            return turned[::-1]

    layer.__class__ = Mixing
    with pytest.raises(AdapterRefused, match="in one batch with other rows this model's answers differ"):
        Adapters(model).load(source_of(red))


def test_a_layer_whose_weights_are_used_without_a_call(red: Path) -> None:
    model = random_model("qwen3")
    layer = model.layers[1].mlp

    class Reaching(type(layer)):  # type: ignore[misc]
        def __call__(self, x: mx.array) -> mx.array:
            y: mx.array = x @ self.up_proj.weight.T @ self.down_proj.weight.T
            return y

    layer.__class__ = Reaching
    with pytest.raises(
        AdapterRefused, match=r"model\.layers\.1\.mlp\.down_proj is a layer that the model does not"
    ):
        Adapters(model).load(source_of(red))
