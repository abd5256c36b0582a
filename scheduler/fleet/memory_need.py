"""What a model that is not loaded would need at least: from its files, before any engine has read them.

The weights are counted as `engine/mlx/loading.py` makes them: as they are stored, or converted to one type,
for which packed weights are unpacked unless they are to stay packed. A process's floor then comes from the
engine's own arithmetic (`engine/budget/limits.py`). Once a model has been loaded its engine reports both
exactly (`Ready`).
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from scheduler.engine.budget.limits import MemoryLimit
from scheduler.errors import StartupError
from scheduler.shared.folder.reading import read_json
from scheduler.shared.folder.weight_files import StoredTensor, read_weights

_FLOAT_BYTES = {"F64": 8, "F32": 4, "F16": 2, "BF16": 2}
_TARGET_BYTES = {"float32": 4, "bfloat16": 2, "float16": 2}
_SMALL_FLOAT = "F8_"
"""mlx-lm makes bfloat16 of what is stored in eight bits without a scale of its own."""
_WORD_BITS = 32
_AWQ_NUMBERS = 8
"""How many a word of AutoAWQ's has."""
_LEAST_BITS = 2
"""The fewest bits of packed weights; a configuration that names fewer is invalid."""


def need_bytes(folder: Path, weights_dtype: str, device: str | None) -> int:
    """Return the least limit that an engine with this model runs within. `weights_dtype`: as `Load` has it;
    `device`: as an engine has reported it (`Ready.device`), or None if unknown, which counts as the one that
    needs most. Raise StartupError for files that cannot be read."""
    return MemoryLimit(0, weights_bytes(folder, weights_dtype, device)).least_bytes


def weights_bytes(folder: Path, weights_dtype: str, device: str | None) -> int:
    """Return the bytes of the model's weights in memory; too many where mlx-lm leaves out some of them."""
    stored = read_weights(folder).tensors
    if weights_dtype == "auto":
        weights_dtype = "float32" if device in (None, "cpu") else "stored"
    if weights_dtype == "stored":
        return sum(_stored_bytes(tensor) for tensor in stored.values())
    if weights_dtype == "packed":
        return sum(_widened_bytes(tensor) for tensor in stored.values())
    bits = _Bits(folder)
    target_bytes = _TARGET_BYTES[weights_dtype]
    return sum(_converted_bytes(name, stored, target_bytes, bits) for name in stored)


def _stored_bytes(tensor: StoredTensor) -> int:
    return 2 * tensor.elements if tensor.dtype.startswith(_SMALL_FLOAT) else tensor.nbytes


def _widened_bytes(tensor: StoredTensor) -> int:
    """Return the bytes with every float in float32, and packed weights as they are."""
    is_float = tensor.dtype in _FLOAT_BYTES or tensor.dtype.startswith(_SMALL_FLOAT)
    return 4 * tensor.elements if is_float else tensor.nbytes


def _converted_bytes(name: str, stored: Mapping[str, StoredTensor], target_bytes: int, bits: _Bits) -> int:
    tensor = stored[name]
    layer, _, kind = name.rpartition(".")
    packed = f"{layer}.scales" in stored
    if packed and kind == "qweight":
        return tensor.elements * _AWQ_NUMBERS * target_bytes
    if packed and kind in ("scales", "biases", "qzeros"):
        return 0  # They are multiplied into the weights.
    if packed and kind == "weight":
        return tensor.elements * _WORD_BITS // bits.of(layer) * target_bytes
    if tensor.dtype in _FLOAT_BYTES or tensor.dtype.startswith(_SMALL_FLOAT):
        return tensor.elements * target_bytes
    return tensor.nbytes


class _Bits:
    """How many bits a packed weight has, as mlx-lm's configuration says: for all layers, or for one."""

    def __init__(self, folder: Path) -> None:
        try:
            config = read_json(folder / "config.json") or {}
            found = config.get("quantization") or config.get("quantization_config") or {}
            self._found: Mapping[str, Any] = dict(found)
        except (ValueError, TypeError) as error:
            raise StartupError(f"--model: {folder / 'config.json'} cannot be read: {error}") from error

    def of(self, layer: str) -> int:
        own = self._found.get(layer)
        bits = (own if isinstance(own, dict) else self._found).get("bits", self._found.get("bits"))
        return bits if isinstance(bits, int) and _LEAST_BITS <= bits <= _WORD_BITS else 4
