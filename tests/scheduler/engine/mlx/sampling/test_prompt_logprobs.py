"""Log-probabilities of prompts are the model's own: alone, in a batch, in chunks of any size, and once."""

from __future__ import annotations

from typing import Any

import mlx.core as mx
import numpy as np
import pytest

from scheduler.engine.mlx import backend
from scheduler.shared.messages import LogprobsOut, Submit
from tests.scheduler.engine.mlx.reuse import engine_of, model_of, words

COMMON = words(20, 1)


def expected(family: str, prompt: list[int]) -> Any:
    """mlx-lm's model on the whole prompt at once: (positions, vocabulary)."""
    logits = model_of(family)(mx.array([prompt]))[0].astype(mx.float32)
    return np.array(logits - mx.logsumexp(logits, axis=-1, keepdims=True))


def check(family: str, submit: Submit, found: list[LogprobsOut]) -> None:
    whole = expected(family, submit.prompt.tolist())
    assert len(found) == len(submit.prompt) - 1
    for token, entry, wanted in zip(submit.prompt[1:], found, whole[:-1], strict=True):
        assert entry.chosen == pytest.approx(wanted[token], abs=1e-4)
        best = np.sort(wanted)[::-1][: submit.prompt_logprobs]
        assert [value for _, value in entry.top] == pytest.approx(best, abs=1e-4)


def test_what_they_compute_is_cached_for_others() -> None:
    """Only who asks takes no prefix hit."""
    engine = engine_of("qwen3")
    engine.ask(engine.submit(COMMON, prompt_logprobs=1))
    (after,) = engine.ask(engine.submit(COMMON + words(9, 2)))
    assert after.cached >= len(COMMON) - 1


def test_few_logits_are_in_memory_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Chunks with such rows are as small as it takes, and the result is the same; other chunks are not."""
    monkeypatch.setattr(backend, "_LOGITS_BYTES", 4 * 300 * 6)
    engine = engine_of("qwen3", prefill_chunk_tokens=64)
    seen: list[int] = []
    model = engine.batch.model

    def watched(inputs: mx.array, **kwargs: Any) -> Any:
        seen.append(inputs.size)
        return model(inputs, **kwargs)

    monkeypatch.setattr(engine.batch, "model", watched)
    submits = [engine.submit(COMMON + words(30, number), prompt_logprobs=1) for number in range(2)]
    for submit, heard in zip(submits, engine.ask(*submits), strict=True):
        check("qwen3", submit, heard.prompt_logprobs)
    assert max(seen) <= 6
    engine.ask(engine.submit(words(50, 9)))
    assert max(seen) >= 40
