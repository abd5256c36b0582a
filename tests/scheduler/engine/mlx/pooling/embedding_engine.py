"""An embedder's or a reranker's back end in this process, under the engine's own loop."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from scheduler.engine.loop import EngineLoop
from scheduler.engine.mlx.pooling import loading as model_loading
from scheduler.engine.planning.pace import PrefillPace
from scheduler.shared.messages import Retired, StepOutput, Submit
from scheduler.shared.pooling import Pooler
from scheduler.shared.token_ids import compact
from tests.contracts.journal import GREEDY
from tests.scheduler.engine.mlx.loads import load_of

_PATIENCE_TURNS = 10_000


class EmbeddingEngine:
    """`vectors` of prompts, whichever way the loop batches them."""

    def __init__(self, folder: Path, pooler: Pooler | None = None, **changes: Any) -> None:
        load = load_of(folder, pooler=pooler or Pooler(), **changes)
        backend = model_loading.load(load, lambda stage: None)
        self.backend = backend
        self.loop = EngineLoop(backend, load.max_slots, PrefillPace(load.prefill_chunk_tokens))
        self.outputs: list[StepOutput] = []
        self._ids = 0

    def ask(self, prompts: Sequence[Sequence[int]], dimensions: int = 0) -> dict[int, Retired]:
        """Submit all of them at once. Returns how each ended, by its place."""
        first, self._ids = self._ids + 1, self._ids + len(prompts)
        submits = [
            Submit(first + at, compact(prompt), 1, (), GREEDY, dimensions=dimensions)
            for at, prompt in enumerate(prompts)
        ]
        frames = self.loop.iterate(submits)
        for _ in range(_PATIENCE_TURNS):
            if self.loop.idle:
                break
            frames += self.loop.iterate(())
        self.outputs = [frame for frame in frames if isinstance(frame, StepOutput)]
        return {end.request_id - first: end for output in self.outputs for end in output.retired}

    def vectors(self, prompts: Sequence[Sequence[int]], dimensions: int = 0) -> list[npt.NDArray[np.float32]]:
        ends = self.ask(prompts, dimensions)
        assert {end.reason for end in ends.values()} == {"pooled"}
        return [np.frombuffer(ends[at].vector, "<f4") for at in range(len(prompts))]
