"""Models so small that the reference BLAS does not matter, written once a session."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from mlx_lm.utils import load_model

from scheduler.engine.mlx import loading as model_loading
from scheduler.engine.mlx.backend import MlxBackend
from scheduler.engine.mlx.batching import Batching
from scheduler.engine.mlx.device import METAL, forced
from scheduler.engine.mlx.environment import keep_float32
from scheduler.engine.mlx.loaded_model import LoadedModel
from scheduler.engine.mlx.upstream.apply import apply
from scheduler.engine.planning import prefill_batches
from scheduler.models.random_qwen3 import Shape, write_model
from scheduler.shared.messages import Ready
from scheduler.shared.row_bytes import RowBytes
from tests.scheduler.engine.mlx.grammar_engine import GrammarModel
from tests.scheduler.engine.mlx.loads import load_of

SHAPE = Shape(hidden=32, layers=2, heads=2, kv_heads=1, head_dim=16, feed_forward=64, vocabulary=512, seed=1)


apply()
keep_float32(os.environ)
"""Both as `load` does: some tests make back ends of models that they have not loaded by it."""


@dataclass(frozen=True, slots=True)
class Tiny:
    """One model, shared by all tests: a back end of its own for each costs nothing."""

    folder: Path
    model: Any
    ready: Ready
    row_bytes: RowBytes

    def backend(self, batching: Batching | None = None, **changes: Any) -> MlxBackend:
        load = load_of(self.folder, **changes)
        return MlxBackend(
            LoadedModel(self.model, self.ready, self.row_bytes), load, batching=batching or Batching()
        )


@pytest.fixture(scope="session")
def tiny_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("models") / "tiny"
    write_model(SHAPE, folder)
    return folder


@pytest.fixture(scope="session")
def tiny(tiny_folder: Path) -> Tiny:
    backend = model_loading.load(load_of(tiny_folder), lambda stage: None)
    model, _ = load_model(tiny_folder)
    return Tiny(tiny_folder, model, backend.describe(), backend.facts.row_bytes)


@pytest.fixture(scope="session")
def model(tmp_path_factory: pytest.TempPathFactory) -> GrammarModel:
    """With a whole vocabulary, for what is held to a grammar."""
    return GrammarModel(tmp_path_factory.mktemp("models") / "grammar")


@pytest.fixture(autouse=True)
def prompts_part_early(monkeypatch: pytest.MonkeyPatch) -> None:
    """Prompts of a few hundred tokens are then in several prefill batches at a time."""
    monkeypatch.setattr(prefill_batches, "MOST_PADDING_TOKENS", 48)


@pytest.fixture
def device_of_its_own() -> Iterator[None]:
    """As Metal and CUDA do it: what is slow on x86 alone stays in the graph, and a step is always ahead."""
    with forced(METAL):
        yield
