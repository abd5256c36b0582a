"""Log-probabilities of prompts: how many logits they hold. What they are: `../zoo/test_meetings.py`."""

from __future__ import annotations

from typing import Any

import mlx.core as mx
import pytest

from scheduler.engine.mlx import backend
from tests.scheduler.engine.mlx.reuse import engine_of, words


def test_few_logits_are_in_memory_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Chunks with such rows are as small as it takes; other chunks are not."""
    monkeypatch.setattr(backend, "_LOGITS_BYTES", 4 * 300 * 6)
    engine = engine_of("qwen3", prefill_chunk_tokens=64)
    seen: list[int] = []
    model = engine.batch.model

    def watched(inputs: mx.array, **kwargs: Any) -> Any:
        seen.append(inputs.size)
        return model(inputs, **kwargs)

    monkeypatch.setattr(engine.batch, "model", watched)
    submits = [engine.submit(words(50, number), prompt_logprobs=1) for number in range(2)]
    assert [len(heard.prompt_logprobs) for heard in engine.ask(*submits)] == [49, 49]
    assert max(seen) <= 6
    engine.ask(engine.submit(words(50, 9)))
    assert max(seen) >= 40
