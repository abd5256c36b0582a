"""A model so small that the reference BLAS does not matter, written once a session."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from mlx_lm.utils import load_model

from scheduler.engine import model_loading
from scheduler.engine.mlx_backend import MlxBackend
from scheduler.engine.row_bytes import RowBytes
from scheduler.link.messages import PROTOCOL_VERSION, Load, Ready, ScriptedPlan
from scheduler.models.random_qwen3 import Shape, write_model

SHAPE = Shape(hidden=32, layers=2, heads=2, kv_heads=1, head_dim=16, feed_forward=64, vocabulary=512, seed=1)


def load_of(folder: Path, **changes: Any) -> Load:
    """Load for this folder: float32, 32 slots and a prefill chunk of 64 if not changed."""
    fields: dict[str, Any] = {
        "version": PROTOCOL_VERSION,
        "backend": "mlx",
        "model_folder": str(folder),
        "max_slots": 32,
        "prefill_chunk_tokens": 64,
        "prefill_rows": 8,
        "weights_dtype": "float32",
        "scripted": ScriptedPlan(),
    }
    return Load(**(fields | changes))


@dataclass(frozen=True, slots=True)
class Tiny:
    """One model, shared by all tests: a back end of its own for each costs nothing."""

    folder: Path
    model: Any
    ready: Ready
    row_bytes: RowBytes

    def backend(self, **changes: Any) -> MlxBackend:
        return MlxBackend(self.model, load_of(self.folder, **changes), self.ready, self.row_bytes)


@pytest.fixture(scope="session")
def tiny_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("models") / "tiny"
    write_model(SHAPE, folder)
    return folder


@pytest.fixture(scope="session")
def tiny(tiny_folder: Path) -> Tiny:
    backend = model_loading.load(load_of(tiny_folder), lambda stage: None)
    model, _ = load_model(tiny_folder)
    return Tiny(tiny_folder, model, backend.describe(), backend.row_bytes)
