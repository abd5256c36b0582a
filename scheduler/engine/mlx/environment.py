"""Sets variables of the environment that MLX reads, where the operator has not set them.

MLX reads each variable once, most at its first use and some when it is imported, so this file does not import
it.

**TF32.** MLX multiplies float32 in TF32 (10 bits) on an M5 from macOS 26.2 on, and on CUDA. A model whose
weights are float32 gets `MLX_ENABLE_TF32=0` before anything is computed; where the operator has set 1, the
checks at load hold the model to what rounding makes of it, verdicts and disk blocks are of their own, and
tokens in a batch are not exactly those alone. `float32` in `/v1/models` says which.

**CUDA's caches** (`_CUDA_CACHES`): MLX ends with "Cache thrashing is happening". Chunks of a few lengths
would save the tens of ms that a new plan takes, but a chunk's length follows from the step's time,
checkpoints and prompts. `MLX_CUDA_USE_CUDNN_SDPA=0` is the way back to MLX's own kernels.

**What CUDA compiles** (5 to 22 s a kernel on an H100's host; a first start of a model of 8B's shape took 60 s
instead of 15) MLX keeps in `/tmp`, by name and in place. Here it is in the user's cache, and removed if a
process that was killed left half a kernel.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Mapping, MutableMapping
from importlib.metadata import version
from pathlib import Path

from scheduler.shared.user_cache import user_cache_folder

_HALF = "Failed to load compiled "
"""How MLX's error begins for a file that is no kernel (`jit_module.cpp`, `load_module`)."""
_TF32 = "MLX_ENABLE_TF32"
COMPILED = "MLX_PTX_CACHE_DIR"
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
    environment.setdefault(COMPILED, str(compiled_folder(environment)))


def compiled_folder(environment: Mapping[str, str]) -> Path:
    """Return where MLX is to keep what it has compiled for CUDA. Its own place is in the system's temporary
    folder: what anybody writes there under its names would run in the engine."""
    return user_cache_folder(environment) / f"mlx-cuda-{version('mlx')}"


def drop_compiled(environment: Mapping[str, str], error: BaseException) -> None:
    """Remove the kept kernels if one of them cannot be loaded: MLX writes them in place, so a process that
    is killed meanwhile leaves half of one, which each later engine would die of."""
    if _HALF in str(error):
        shutil.rmtree(environment.get(COMPILED, compiled_folder(environment)), ignore_errors=True)


def keep_float32(environment: MutableMapping[str, str]) -> None:
    """Turn TF32 off. Call it before anything is computed of a model whose weights are float32: MLX would
    round what it multiplies to TF32's 10 bits on an M5 and on CUDA, fewer than the checks at load and equal
    tokens need."""
    environment.setdefault(_TF32, "0")


def tf32_allowed() -> bool:
    """Return whether products of float32 numbers may be TF32's, where the device has it."""
    return os.environ.get(_TF32, "1").strip() != "0"
