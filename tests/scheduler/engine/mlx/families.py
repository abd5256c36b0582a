"""The kinds of cache that mlx-lm has, each by a tiny random model of the zoo, as `load` returns it."""

from __future__ import annotations

from typing import Any

from scheduler.engine.mlx.fusing import Exact, fuse
from scheduler.engine.mlx.upstream.mend import mend
from scheduler.engine.mlx.upstream.products import shift_once
from tests.scheduler.engine.mlx.zoo.census import SMALL, build

_CHANGES: dict[str, dict[str, Any]] = {
    **{family: {"sliding_window": 16} for family in ("gemma3_text", "gpt_oss")},
    **dict.fromkeys(("deepseek_v3", "mamba", "mamba2", "rwkv7"), SMALL),
}
FAMILIES = (
    "deepseek_v3",
    "falcon_h1",
    "gemma3_text",
    "gpt_oss",
    "granitemoehybrid",
    "lfm2",
    "llama",
    "mamba",
    "mamba2",
    "nemotron_h",
    "qwen3",
    "qwen3_5",
    "qwen3_next",
    "rwkv7",
)
"""Sliding windows, latent attention, several recurrent states, both."""
ONE_OF_EACH_KIND = ("deepseek_v3", "gpt_oss", "qwen3", "qwen3_next", "rwkv7")
"""The sample of `make test-all`: latent attention, sliding windows, keys and values of every token, recurrent
layers beside full attention, and recurrent layers only."""


def fused(model: Any, known: Exact | None = None) -> Any:
    """Return this model with its projections fused, as `load` does."""
    shift_once(model)
    fuse(model, known or {})
    return model


def random_model(family: str, **changes: Any) -> Any:
    return mend(build(family, **(_CHANGES.get(family, {}) | changes))[0])
