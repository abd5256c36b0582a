"""Rotary positions that a module of mlx-lm leaves out or computes otherwise than config.json says.

Some modules take no scaling of positions (Qwen3-MoE, Mixtral, Gemma 2), and mlx-lm's YaRN neither
`attention_factor` (mlx-lm #1507, closed without a change) nor `truncate`. The others are not reported. It is
written against mlx-lm 0.32.2, whose classes stay.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import mlx.core as mx
from mlx.nn.layers.base import Module
from mlx.nn.layers.positional_encoding import RoPE
from mlx_lm.models.rope_utils import YarnRoPE, initialize_rope

from scheduler.engine.load_failure import LoadRefused
from scheduler.shared.folder.field_names import head_size
from scheduler.shared.folder.reading import FolderReading
from scheduler.shared.folder.rotary import SHARES

_BETA_FAST, _BETA_SLOW = 32.0, 1.0


def turn_as_configured(model: Any, reading: FolderReading, max_model_len: int | None = None) -> None:
    """Give the layers of `model` the rotary positions of its folder, in the served context, where they have
    others. Raise LoadRefused for those that cannot be given."""
    rotary = reading.rotary
    if rotary.by_layer:
        return
    _turn_share(model, reading)
    plain = [(part, name, rope) for part, name, rope in _ropes(model) if _is_plain(rope)]
    others = [rope for _, _, rope in _ropes(model) if not _is_plain(rope)]
    bases = {rope.base for _, _, rope in plain}
    if rotary.base is not None and bases and not others and not bases & {rotary.base, rotary.local_base}:
        raise LoadRefused(
            f"config.json says {rotary.base} for the base of rotary positions (rope_theta), and mlx-lm's"
            f" {type(model).__module__} computes with {', '.join(map(str, bases))}: serve another model"
        )
    scaling = rotary.scaling
    if scaling is None:
        return
    if not others and not plain:
        raise LoadRefused(
            f"config.json scales rotary positions ({rotary.kind}), and mlx-lm's {type(model).__module__} has"
            " none that can be scaled: serve another model"
        )
    if rotary.grows:
        _widen(plain, reading, max_model_len)
        return
    if not others:
        most = reading.text.get("max_position_embeddings") or reading.context.most_tokens
        for part, name, rope in plain:
            setattr(part, name, initialize_rope(rope.dims, rope.base, rope.traditional, dict(scaling), most))
    for _, _, rope in _ropes(model):
        if type(rope) is YarnRoPE and rotary.base is not None:
            _complete(rope, dict(scaling), rotary.base)


def _widen(plain: list[tuple[Any, str, Any]], reading: FolderReading, max_model_len: int | None) -> None:
    """Give positions of the dynamic type one base for the served context, as vLLM does: one that grows with a
    sequence would turn the keys of a prompt by its chunks and by what of it is cached. Up to the configured
    length it is the model's own."""
    rotary, configured = reading.rotary, reading.context.short_tokens
    if configured is None or max_model_len is None or max_model_len <= configured:
        return
    growth = rotary.factor * max_model_len / configured - (rotary.factor - 1)
    for _, _, rope in plain:
        if rotary.base is None or rope.base == rotary.base:
            rope.base *= growth ** (rope.dims / (rope.dims - 2))


def _turn_share(model: Any, reading: FolderReading) -> None:
    """Turn only a part of each head where config.json says so and the module has no field for it (GLM-4)."""
    share, size = reading.rotary.share, head_size(reading.text)
    declared = frozenset[str]() if reading.module is None else reading.module.declared
    if share is None or size is None or declared & {*SHARES, "rotary_dim", "qk_rope_head_dim"}:
        return
    for _, _, rope in _ropes(model):
        if type(rope) is RoPE and rope.dims == size:
            rope.dims = int(size * share)


def _ropes(model: Any) -> Iterator[tuple[Any, str, Any]]:
    """Yield the rotary positions in a model, with the part that has them and their name there."""
    for _, part in model.named_modules():
        for name, child in part.children().items():
            if isinstance(child, Module) and _turns(child) and not any(map(_turns, _parts(child))):
                yield part, name, child


def _turns(part: Any) -> bool:
    name = type(part).__name__.lower()
    return "rope" in name or "rotary" in name


def _parts(part: Any) -> Iterator[Any]:
    """Yield the parts within: an attention may be named after its positions."""
    for _, inner in part.named_modules():
        if inner is not part:
            yield inner


def _is_plain(rope: Any) -> bool:
    return type(rope) is RoPE and rope.scale == 1.0


def _complete(rope: YarnRoPE, scaling: dict[str, Any], base: float) -> None:
    """Take what mlx-lm's YaRN does not: `attention_factor`, and bounds that are not rounded."""
    if (factor := scaling.get("attention_factor")) is not None:
        rope.mscale = float(factor)
    if scaling.get("truncate") is False:
        dims, original = int(rope.dims), float(scaling["original_max_position_embeddings"])

        def dimension(turns: float) -> float:
            return dims * math.log(original / (turns * 2 * math.pi)) / (2 * math.log(base))

        low = max(dimension(scaling.get("beta_fast") or _BETA_FAST), 0)
        high = min(dimension(scaling.get("beta_slow") or _BETA_SLOW), dims - 1)
        ramp = mx.clip((mx.arange(dims // 2) - low) / max(high - low, 0.001), 0, 1)
        extra = base ** (mx.arange(0, dims, 2, dtype=mx.float32) / dims)
        inter = float(scaling["factor"]) * extra
        rope._freqs = inter * extra / (inter * (1 - ramp) + extra * ramp)
