"""Sets variables of the environment that MLX reads, where the operator has not set them.

MLX reads each variable once, most at its first use and some when it is imported, so this file does not import
it.
"""

from __future__ import annotations

import os
from collections.abc import MutableMapping

_TF32 = "MLX_ENABLE_TF32"
_CUDA_CACHES = {
    "MLX_ENABLE_CACHE_THRASHING_CHECK": "0",
    "MLX_CUDA_SDPA_CACHE_SIZE": "4096",
    "MLX_CUDA_GRAPH_CACHE_SIZE": "4096",
}
"""How many attention plans and operation graphs MLX keeps for CUDA, by their exact shapes (256 and 400 by
default). Each chunk of another length behind another context is a new one, and MLX raises after twice as many
misses as there are places, in all of a process's life: after some 500 prompts."""


def set_defaults(environment: MutableMapping[str, str]) -> None:
    """Set CUDA's caches. Call it before MLX is imported."""
    for name, value in _CUDA_CACHES.items():
        environment.setdefault(name, value)


def keep_float32(environment: MutableMapping[str, str]) -> None:
    """Turn TF32 off. Call it before anything is computed of a model whose weights are float32: MLX would
    round what it multiplies to TF32's 10 bits on an M5 and on CUDA, fewer than the checks at load and equal
    tokens need."""
    environment.setdefault(_TF32, "0")


def tf32_allowed() -> bool:
    """Return whether products of float32 numbers may be TF32's, where the device has it."""
    return os.environ.get(_TF32, "1").strip() != "0"
