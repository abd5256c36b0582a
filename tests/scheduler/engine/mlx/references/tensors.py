"""The weights of the tiny models, from the name and the shape of each tensor alone.

PyTorch's environment and CI make the same bits: a hash gives the numbers, and all that is done to them is
exact.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from hashlib import shake_256
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

Tensor: TypeAlias = npt.NDArray[np.float32]


def tensor(name: str, shape: Sequence[int]) -> Tensor:
    """Return the float32 tensor of this name in a saved model: its numbers spread evenly about the usual
    value."""
    count = math.prod(shape)
    drawn = np.frombuffer(shake_256(f"{name} {list(shape)}".encode()).digest(4 * count), "<u4")
    even = (drawn >> 8).astype(np.float32) * np.float32(2**-23) - np.float32(1)
    middle, spread = _range(name, shape)
    return (np.float32(middle) + np.float32(spread) * even).astype(np.float32).reshape(tuple(shape))


def _range(name: str, shape: Sequence[int]) -> tuple[float, float]:
    if len(shape) >= 2:
        # (out, width, in) of a convolution: its inputs are all but the first axis.
        inputs = math.prod(shape[1:]) if "conv" in name else shape[-1]
        return 0.0, (1.0 if "embed" in name or "wte" in name else 1.5) * math.sqrt(3 / inputs)
    if name.endswith("A_log"):
        return 0.5, 0.5
    if name.endswith(("bias", "sinks")):
        return 0.0, 0.3
    return 1.0, 0.3


def weights(shapes: Mapping[str, Sequence[int]]) -> dict[str, Tensor]:
    return {name: tensor(name, shape) for name, shape in shapes.items()}
