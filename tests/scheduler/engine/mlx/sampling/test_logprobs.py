"""Log-probabilities are the model's own, for any batch and any history."""

from __future__ import annotations

from typing import Any

import mlx.core as mx
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from scheduler.engine.mlx import backend
from scheduler.engine.mlx.sampling.logprobs import LogprobsRequested
from scheduler.shared.messages import MAX_TOP_LOGPROBS, LogprobsOut
from tests.examples import examples
from tests.scheduler.engine.mlx.reuse import engine_of, words


def _check(found: LogprobsOut, token: int, expected: Any, top: int) -> None:
    assert found.chosen == pytest.approx(expected[token], abs=1e-4)
    assert [value for _, value in found.top] == pytest.approx(np.sort(expected)[::-1][:top], abs=1e-4)
    for other, value in found.top:
        assert value == pytest.approx(expected[other], abs=1e-4)


@settings(deadline=None, max_examples=examples(100))
@given(
    tops=st.lists(st.none() | st.integers(0, MAX_TOP_LOGPROBS), min_size=1, max_size=6),
    vocabulary=st.integers(1, 60),
    dtype=st.sampled_from([mx.float32, mx.bfloat16, mx.float16]),
    scale=st.sampled_from([0.0, 0.1, 3.0, 300.0]),
    seed=st.integers(0, 1 << 20),
)
def test_any_logits_and_any_neighbours(
    tops: list[int | None], vocabulary: int, dtype: mx.Dtype, scale: float, seed: int
) -> None:
    """A log-softmax in float32 whatever the dtype, and a row gets the same as alone: also which of equally
    likely tokens are among the best (a coarse dtype has many)."""
    numbers = np.random.default_rng(seed)
    rows = numbers.normal(0, scale, (len(tops), vocabulary)).astype(np.float32)
    rows[numbers.random(rows.shape) < 0.1] = -np.inf
    rows[:, 0] = 1.0
    logits = mx.array(rows).astype(dtype)
    chosen = [int(token) for token in numbers.integers(0, vocabulary, len(tops))]
    tokens = mx.array(chosen)
    shares, _ = LogprobsRequested(tops).extract(logits, tokens)
    exact = np.array(logits.astype(mx.float32)).astype(np.float64)
    for place, (top, share) in enumerate(zip(tops, shares, strict=True)):
        assert (share is None) == (top is None)
        if top is None or share is None:
            continue
        best = exact[place].max()
        expected = exact[place] - best - np.log(np.sum(np.exp(exact[place] - best)))
        found = share.read()
        _check(found, chosen[place], np.maximum(expected, -9999.0), top)
        (alone,), _ = LogprobsRequested([top]).extract(logits[place : place + 1], tokens[place : place + 1])
        assert alone is not None
        assert [other for other, _ in alone.read().top] == [other for other, _ in found.top]
        assert alone.read().chosen == pytest.approx(found.chosen, abs=1e-5)


def test_few_logits_are_in_memory_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Chunks of rows that ask for those of their prompts are as small as it takes; other chunks are not."""
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
