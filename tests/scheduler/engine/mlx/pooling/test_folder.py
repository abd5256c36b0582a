"""An embedder's folder is read as any other: both spellings of positions, tensors that no vector needs."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import mlx.core as mx

from scheduler.engine.mlx.pooling.loading import _read_model
from scheduler.engine.mlx.upstream.two_way import body_of
from scheduler.shared.pooling import Pooler
from tests.scheduler.engine.mlx.zoo import tiny
from tests.scheduler.engine.mlx.zoo.census import write

_PROMPT = mx.array([[(37 * at) % tiny.VOCABULARY for at in range(24)]])


def _hidden(folder: Path) -> mx.array:
    hidden: mx.array = body_of(_read_model(folder, Pooler(), None)[0])(_PROMPT)
    mx.eval(hidden)
    return hidden


def test_vectors_are_those_of_the_other_spelling(tmp_path: Path) -> None:
    """Saved without the body's prefix, with rotary tables beside."""
    write("llama", tmp_path, rope_theta=54_321.0)
    expected = _hidden(tmp_path)
    weights: Any = mx.load(str(tmp_path / "model.safetensors"))
    bare = {name.removeprefix("model."): array for name, array in weights.items()}
    bare["layers.0.self_attn.rotary_emb.inv_freq"] = mx.ones((4,))
    mx.save_safetensors(str(tmp_path / "model.safetensors"), bare)
    config = json.loads((tmp_path / "config.json").read_text())
    config["rope_parameters"] = {"rope_type": "default", "rope_theta": config.pop("rope_theta")}
    (tmp_path / "config.json").write_text(json.dumps(config))
    assert float(mx.abs(expected - _hidden(tmp_path)).max()) < 1e-5
    config["rope_parameters"]["rope_theta"] = 10_000.0
    (tmp_path / "config.json").write_text(json.dumps(config))
    assert float(mx.abs(expected - _hidden(tmp_path)).max()) > 0.01, "positions would not show"
