"""A model of the shape of Qwen3-8B with random weights, made on the device: `python -m loadtests.device.large
FOLDER` writes it, for `penstock bench compare --model FOLDER`."""

from __future__ import annotations

import json
import shutil
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import mlx.core as mx

from loadtests.device import steps
from loadtests.device.finding import Finding, attempt
from scheduler.engine.mlx.device import device
from scheduler.models.random_qwen3 import (
    FIRST_ADDED_TOKEN_ID,
    TINY,
    TOKENIZER_FILES,
    TOKENIZER_FOLDER,
    Shape,
    layout,
    model_config,
)

QWEN3_8B = Shape(
    hidden=4096, layers=36, heads=32, kv_heads=8, head_dim=128, feed_forward=12288, vocabulary=151936
)
_MEMORY_FILES = Path("/dev/shm")
_ROOM = 1.25
"""Times the model's bytes that must be free there."""


def findings(quick: bool) -> Iterator[Finding]:
    shape = TINY if quick else QWEN3_8B
    with _folder(shape) as folder:
        yield attempt("weights", lambda: _made(shape, folder))
        yield from steps.findings(folder, steps.Sizes((2,), 0, ()) if quick else steps.FULL)


@contextmanager
def _folder(shape: Shape) -> Iterator[Path]:
    """Make a folder in memory where there is room, so that no disk decides how long a start takes."""
    weights = 2 * sum(
        size[0] * (size[1] if len(size) == 2 else 1) for _, size, _ in layout(shape, tied=False)
    )
    room = _MEMORY_FILES.is_dir() and shutil.disk_usage(_MEMORY_FILES).free > _ROOM * weights
    with tempfile.TemporaryDirectory(prefix="penstock-model-", dir=_MEMORY_FILES if room else None) as folder:
        yield Path(folder)


def _made(shape: Shape, folder: Path) -> Finding:
    for name in TOKENIZER_FILES:
        shutil.copyfile(TOKENIZER_FOLDER / name, folder / name)
    config = {**model_config(shape, tied=False), "torch_dtype": "bfloat16"}
    (folder / "config.json").write_text(json.dumps(config))
    mx.random.seed(shape.seed)
    tensors: dict[str, mx.array] = {}
    total = number = 0
    for name, size, value in layout(shape, tied=False):
        tensors[name] = _tensor(name, size, value)
        if name.endswith("post_attention_layernorm.weight") or name.startswith("lm_head"):  # A layer a file.
            total += sum(tensor.nbytes for tensor in tensors.values())
            mx.save_safetensors(str(folder / f"model-{number:05}.safetensors"), tensors, {"format": "pt"})
            tensors, number = {}, number + 1
    device().clear_pool()
    return Finding("weights", "measured", {"bytes": total, "layers": shape.layers})


def _tensor(name: str, size: tuple[int, ...], value: float) -> mx.array:
    """`value`: of all numbers of a vector, the deviation of a matrix's."""
    if len(size) == 1:
        return mx.full(size, value, mx.bfloat16)
    half_width = value * 3**0.5
    matrix = mx.random.uniform(-half_width, half_width, size).astype(mx.bfloat16)
    if name.startswith("lm_head"):
        # The tokenizer has no text for the others, so their logits are near zero.
        known = mx.arange(size[0])[:, None] < FIRST_ADDED_TOKEN_ID
        matrix = mx.where(known, matrix, 0.02 * matrix).astype(mx.bfloat16)
    mx.eval(matrix)
    return matrix


if __name__ == "__main__":
    made = Path(sys.argv[1])
    made.mkdir(parents=True)
    _made(QWEN3_8B, made)
