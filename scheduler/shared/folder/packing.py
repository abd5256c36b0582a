"""Which quantised weights of other programs mlx-lm reads, and what to say of those that it does not. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final

from scheduler.errors import StartupError
from scheduler.shared.folder.mlx_lm_module import Module

_REMEDY = (
    "serve a conversion to MLX, or make one of its 16-bit original (mlx_lm.convert --hf-path ORIGINAL -q)"
)
_SUFFIXES: Final[Mapping[str, str]] = {
    "qweight": "GPTQ or AWQ",
    "qzeros": "GPTQ or AWQ",
    "g_idx": "GPTQ",
    "weight_scale_inv": "fp8 in blocks",
    "weight_packed": "compressed-tensors",
    "weight_scale": "fp8 or compressed-tensors",
    "SCB": "bitsandbytes in 8 bits",
    "quant_map": "bitsandbytes in 4 bits",
    "absmax": "bitsandbytes in 4 bits",
}
"""The last part of a packed tensor's name, and whose it is."""
_AWQ_BITS = 4
_AWQ_LAYOUT = "gemm"


def check_packing(config: Mapping[str, Any], names: Iterable[str], module: Module) -> None:
    """Raise StartupError if these tensors are packed in a way that the module does not unpack.

    mlx-lm reads its own packing and AutoAWQ's for every model; fp8 in blocks and compressed-tensors where the
    module names their tensors. GPTQ's tensors have AutoAWQ's names and another layout.
    """
    if config.get("quantization"):
        return
    given = config.get("quantization_config") or config.get("compression_config") or {}
    method = str(given.get("quant_method") or "").lower() if isinstance(given, Mapping) else ""
    if method == "awq":
        _check_awq(given)
        return
    for name in names:
        suffix = name.rsplit(".", 1)[-1]
        if (kind := _SUFFIXES.get(suffix)) is None or suffix.lower() in module.words:
            continue
        label = "GPTQ" if method == "gptq" else f"{kind} ({method})" if method else kind
        raise StartupError(
            f"--model: the weights are packed as {label} ({name}), which mlx-lm's {module.name} does not"
            f" unpack: {_REMEDY}"
        )


def _check_awq(given: Mapping[str, Any]) -> None:
    bits = given.get("bits") or given.get("w_bit") or _AWQ_BITS
    layout = str(given.get("version") or _AWQ_LAYOUT).lower()
    if bits != _AWQ_BITS or layout != _AWQ_LAYOUT:
        raise StartupError(
            f"--model: the weights are packed as AWQ in {bits} bits and the layout {layout}, and mlx-lm"
            f" unpacks {_AWQ_BITS} bits in the layout {_AWQ_LAYOUT}: {_REMEDY}"
        )
