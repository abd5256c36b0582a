"""The types of weights that a model of the zoo is tried in besides float32: 16 bits, and mlx-lm's quantised
ones. Asked for by a name behind an @: `gemma3_text@affine4`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import mlx.core as mx
from mlx.nn.layers.embedding import Embedding
from mlx.nn.layers.quantized import QuantizedEmbedding, quantize
from mlx.utils import tree_unflatten


@dataclass(frozen=True, slots=True)
class Packed:
    """Arguments of `nn.quantize`."""

    mode: str
    group_size: int
    bits: int


WEIGHTS: dict[str, mx.Dtype | Packed] = {
    "bfloat16": mx.bfloat16,
    "float16": mx.float16,
    "affine8": Packed("affine", 32, 8),
    "affine4": Packed("affine", 32, 4),
    "mxfp4": Packed("mxfp4", 32, 4),
    "nvfp4": Packed("nvfp4", 16, 4),
}
"""Quantised ones compute in bfloat16, as mlx-lm's published ones do. The CPU back end runs all of them."""

KINDS = {
    "qwen3": "keys and values of every token, shared in place",
    "gemma3_text": "sliding windows beside full attention",
    "mistral3+windows": "windows that are in the mask only",
    "deepseek_v3+dense": "a latent form of keys and values",
    "gemma4_text": "layers that read the cache of another layer",
    "rwkv7": "recurrent layers only, through which padding runs",
    "qwen3_5": "recurrent layers beside full attention",
    "falcon_h1": "several caches in one layer",
    "recurrent_gemma": "one row at a time",
    "gpt_oss": "sliding windows; experts",
}
"""By module or module+variant: one for each kind of cache, without experts where a kind has one."""

_EXPERTS = "MLX's CPU back end has products of experts (GatherMM) in float32 and in quantised weights only"
REFUSED = {f"gpt_oss@{weights}": _EXPERTS for weights in ("bfloat16", "float16")}
"""What the CPU back end does not compute."""


def in_weights() -> list[str]:
    """The names of all kinds in all weights that can be computed."""
    return [name for kind in KINDS for weights in WEIGHTS if (name := f"{kind}@{weights}") not in REFUSED]


def base_of(name: str) -> str:
    """Without the weights."""
    return name.partition("@")[0]


def convert(model: Any, weights: str) -> None:
    """Give a float32 model these weights, in place."""
    match WEIGHTS[weights]:
        case Packed() as packed:
            model.set_dtype(mx.bfloat16)
            quantize(
                model,
                packed.group_size,
                packed.bits,
                mode=packed.mode,
                class_predicate=_predicate(model, packed),
            )
        case dtype:
            model.set_dtype(dtype)
    mx.eval(model.parameters())


def _predicate(model: Any, packed: Packed) -> Callable[[str, Any], bool | dict[str, Any]]:
    """As mlx-lm's own `quantize_model`: what does not divide into groups stays, and what the module wants in
    other bits gets them."""
    wanted = getattr(model, "quant_predicate", None)

    def chosen(path: str, module: Any) -> bool | dict[str, Any]:
        if not hasattr(module, "to_quantized") or module.weight.shape[-1] % packed.group_size:
            return False
        answer = True if wanted is None else wanted(path, module)
        if isinstance(answer, dict):  # Its own group is larger than the rows of a tiny model.
            divides = not module.weight.shape[-1] % 32
            return divides and {"group_size": 32, "bits": answer["bits"], "mode": "affine"}
        return bool(answer)

    return chosen


def compute_in_float32(model: Any) -> None:
    """The same values, all arithmetic in float32, in place. Quantised matrices stay packed: their products
    have the type of what they are multiplied with. Embeddings decide that type, so they are unpacked."""
    unpacked = []
    for path, module in model.named_modules():
        if isinstance(module, QuantizedEmbedding):
            packed = (module.weight, module.scales, module.biases)
            plain = Embedding(*module.weight.shape)
            plain.weight = mx.dequantize(*packed, module.group_size, module.bits, module.mode)
            unpacked.append((path, plain))
    model.update_modules(tree_unflatten(unpacked))
    model.set_dtype(mx.float32)
    mx.eval(model.parameters())
