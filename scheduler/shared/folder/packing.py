"""Which quantised weights of other programs mlx-lm reads, and what to say of those that it does not. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final

from scheduler.errors import StartupError
from scheduler.shared.folder.mlx_lm_module import Module

_SUFFIXES: Final = (
    *("qweight", "qzeros", "g_idx", "weight_scale_inv", "weight_packed", "weight_scale"),
    *("scb", "quant_map", "absmax"),
)
"""The last part of a packed tensor's name, in lower case."""
_AWQ: Final = {"bits": 4, "w_bit": 4, "version": "gemm"}
"""What mlx-lm unpacks of AutoAWQ."""


def check_packing(config: Mapping[str, Any], names: Iterable[str], module: Module) -> None:
    """Raise StartupError if these tensors are packed in a way that the module does not unpack.

    mlx-lm reads its own packing and AutoAWQ's for every model; fp8 in blocks and compressed-tensors where the
    module names their tensors. GPTQ's tensors have AutoAWQ's names and another layout.
    """
    given = config.get("quantization_config") or config.get("compression_config") or {}
    if config.get("quantization") or not isinstance(given, Mapping):
        return
    method = str(given.get("quant_method") or "").lower()
    if method == "awq":
        others = (
            f"{name} {given[name]}"
            for name in _AWQ
            if str(given.get(name) or _AWQ[name]).lower() != str(_AWQ[name])
        )
        found = next(others, None)
    else:
        suffixes = ((name, name.rsplit(".", 1)[-1].lower()) for name in names)
        found = next((name for name, one in suffixes if one in _SUFFIXES and one not in module.words), None)
    if found is not None:
        raise StartupError(
            f"--model: the weights are packed as {method or 'another program has them'} ({found}), which"
            f" mlx-lm's {module.name} does not unpack: serve a conversion to MLX, or make one of its 16-bit"
            " original (mlx_lm.convert --hf-path ORIGINAL -q)"
        )
