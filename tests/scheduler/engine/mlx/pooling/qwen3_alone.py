"""mlx-lm's Qwen3 over one text at a time, without anything of ours: the reference for vectors."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import mlx.core as mx
import numpy as np
import numpy.typing as npt
from mlx_lm.models import qwen3

Array = npt.NDArray[np.float32]


class Qwen3Alone:
    """The model in a folder, with or without the prefix of its tensors' names."""

    def __init__(self, folder: Path) -> None:
        config = json.loads((folder / "config.json").read_text())
        self._model = qwen3.Model(qwen3.ModelArgs.from_dict(config))
        found: Any = mx.load(str(folder / "model.safetensors"))
        self._model.load_weights(
            [(f"model.{name.removeprefix('model.')}", one) for name, one in found.items()]
        )

    def hidden(self, tokens: list[int]) -> Array:
        """Final hidden states, (tokens, hidden size)."""
        return np.array(self._model.model(mx.array([tokens]))[0])

    def logits(self, tokens: list[int]) -> Array:
        """Return the last token's logits."""
        return np.array(self._model(mx.array([tokens]))[0, -1])


def unit(vector: Array) -> Array:
    """Return the vector scaled to length 1."""
    scaled: Array = vector / np.linalg.norm(vector)
    return scaled
