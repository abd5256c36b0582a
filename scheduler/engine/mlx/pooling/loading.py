"""Load an embedder, whose folder may name its weights otherwise than mlx-lm expects."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import mlx.core as mx

from scheduler.engine.load_failure import LoadRefused
from scheduler.engine.mlx.device import device
from scheduler.engine.mlx.folder_model import read_model
from scheduler.engine.mlx.loading import load_weights
from scheduler.engine.mlx.pooling.backend import PoolingBackend
from scheduler.engine.mlx.pooling.pooled_row import Dense, PoolingHead
from scheduler.engine.mlx.upstream.saved_tensors import Weights
from scheduler.engine.mlx.upstream.two_way import attend_both_ways, body_of
from scheduler.shared.device_errors import is_device_error
from scheduler.shared.messages import Load
from scheduler.shared.pooling import Pooler

_BODY = "model."


def load(command: Load, report: Callable[[str], None]) -> PoolingBackend:
    """Load the model of `command`, run one token through it, and describe it. Nothing of the batch needs a
    check: rows share no cache, and padding stands behind them.

    Raise mlx-lm's error for a folder that is not a model it knows, and LoadRefused.
    """
    pooler, folder = command.pooler, Path(command.model_folder)
    assert pooler is not None, "a model that writes tokens"
    loaded = load_weights(command, report, lambda command: _read_model(folder, pooler, command.max_model_len))
    head = PoolingHead(pooler, [_dense(folder / name) for name in pooler.dense])
    device().free_buffers()
    return PoolingBackend(loaded, command, pooler, head)


def _read_model(folder: Path, pooler: Pooler, max_model_len: int | None) -> tuple[Any, dict[str, Any]]:
    """Return mlx-lm's model, its weights not evaluated, and its configuration.

    An embedder is often saved without the part that is not used: its tensors lack the body's prefix
    (Qwen3-Embedding, EmbeddingGemma), and there is no `lm_head`, although the embeddings are not tied
    (Qwen3-Embedding-8B). Where there is one, it is not loaded.
    """
    headless = {"tie_word_embeddings": True}
    model, config = read_model(folder, max_model_len, headless, _sanitized)
    body_of(model)
    if pooler.two_way:
        attend_both_ways(model)
    return model, config


def _sanitized(model: Any, weights: Weights) -> Weights:
    if not any(name.startswith((_BODY, "language_model.")) for name in weights):
        heads = ("lm_head.",)
        weights = {name if name.startswith(heads) else _BODY + name: array for name, array in weights.items()}
    found: Weights = type(model).sanitize(model, weights) if hasattr(type(model), "sanitize") else weights
    if not hasattr(model, "lm_head"):
        found = {name: array for name, array in found.items() if not name.startswith("lm_head.")}
    return found


def _dense(folder: Path) -> Dense:
    """Return a linear layer behind the pooling, in float32. Raise LoadRefused."""
    try:
        weights = mx.load(str(folder / "model.safetensors"))
        config = json.loads((folder / "config.json").read_text("utf-8"))
        assert isinstance(weights, dict)
        weight, bias = weights["linear.weight"], weights.get("linear.bias")
    except (OSError, ValueError, RuntimeError, KeyError) as error:
        if is_device_error(error):
            raise
        raise LoadRefused(f"{folder} holds no linear layer ({error}): download the model again") from error
    return Dense(
        weight.astype(mx.float32),
        None if bias is None else bias.astype(mx.float32),
        tanh=str(config.get("activation_function", "")).endswith("Tanh"),
    )
