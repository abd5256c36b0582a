"""Log-probabilities of prompts are the model's own: alone, in a batch, in chunks of any size, and once."""

from __future__ import annotations

from itertools import product
from typing import Any

import mlx.core as mx
import numpy as np
import pytest

from scheduler.engine.mlx import backend
from scheduler.engine.plan import StepPlan
from scheduler.shared.messages import LogprobsOut, StepOutput, Submit
from tests.examples import sampled
from tests.scheduler.engine.mlx.reuse import ReuseEngine, engine_of, model_of, words

FAMILIES = ["llama", "qwen3", "gemma3_text", "gpt_oss", "qwen3_next", "deepseek_v3"]
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


@pytest.mark.parametrize(
    "case",
    sampled(
        product(FAMILIES, (3, 8, 64)),
        [
            ("qwen3_next", 3),
            ("qwen3", 8),
            ("gpt_oss", 64),
            ("deepseek_v3", 3),
            ("gemma3_text", 8),
            ("llama", 64),
            ("gpt_oss", 3),
            ("qwen3_next", 64),
        ],
    ),
    ids=lambda case: f"{case[0]}-{case[1]}",
)
def test_they_are_those_of_the_whole_prompt(case: tuple[str, int]) -> None:
    """Asked for by some of a batch that shares a prefix, twice, so that it is cached; `ask` checks all
    tokens."""
    family, chunk = case
    engine = engine_of(family, prefill_chunk_tokens=chunk)
    for _ in range(2):
        submits = [
            engine.submit(COMMON + words(3 + number, number), prompt_logprobs=top, max_tokens=3)
            for number, top in enumerate((2, None, 0, 20, None))
        ]
        for submit, heard in zip(submits, engine.ask(*submits), strict=True):
            if submit.prompt_logprobs is None:
                assert not heard.prompt_logprobs
            else:
                check(family, submit, heard.prompt_logprobs)
                assert heard.cached == 0


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


def run_preempted(engine: ReuseEngine, submit: Submit, after_steps: int) -> None:
    """Preempt it once, after this number of steps."""
    engine.iterate([submit])
    for _ in range(after_steps):
        engine.iterate()
    (sequence,) = list(engine.loop._slots)
    engine.loop._step(StepPlan(preempt=(sequence.request_id,)))
    engine.finish()


@pytest.mark.parametrize("after_steps", [0, 1, 3, 5, 9])
def test_preemption_loses_none_and_doubles_none(after_steps: int) -> None:
    """In the middle of the prompt and behind it; `_hear` checks that each comes once."""
    engine = engine_of("qwen3")
    submit = engine.submit(words(40, 4), prompt_logprobs=3)
    run_preempted(engine, submit, after_steps)
    engine.check(submit)
    check("qwen3", submit, engine.heard[submit.request_id].prompt_logprobs)


def test_a_step_sends_what_it_computed() -> None:
    """They come with the progress of the prompt, all of them before the first token."""
    engine = engine_of("qwen3")
    submit = engine.submit(words(30, 5), prompt_logprobs=0)
    counts: list[int] = []
    commands = [submit]
    while commands or not engine.loop.idle:
        for frame in engine.loop.iterate(commands):
            assert isinstance(frame, StepOutput)
            counts += [len(scores.entries) for scores in frame.prompt_logprobs]
            assert not frame.tokens or sum(counts) == 29
        commands = []
    assert counts == [8, 8, 8, 5]
