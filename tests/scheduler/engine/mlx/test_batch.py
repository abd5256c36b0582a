"""Prompts and decoding rows share steps on the real batch: whatever the chunks, the tokens are the same."""

from __future__ import annotations

import random
from dataclasses import replace
from typing import Any

import mlx.core as mx
import pytest

from scheduler.engine import prefill_batches
from scheduler.engine.device import Traits
from scheduler.engine.mlx.backend import MlxBackend
from scheduler.engine.mlx.cpu import softmax
from scheduler.engine.mlx.device import X86, forced
from scheduler.engine.mlx.loaded_model import LoadedModel
from scheduler.engine.mlx.upstream import attention
from tests.contracts.journal import GREEDY, SEEDED, Rows, alone, prompt_of, request
from tests.scheduler.engine.mlx.conftest import Tiny
from tests.scheduler.engine.mlx.loads import load_of
from tests.scheduler.engine.mlx.reuse import engine_of, words


def count_calls(monkeypatch: pytest.MonkeyPatch, model: Any) -> list[int]:
    """Return a list that gets the tokens of a row of each call of the model."""
    calls: list[int] = []
    call = type(model).__call__

    def counted(self: Any, inputs: mx.array, *args: Any, **kwargs: Any) -> Any:
        calls.append(inputs.shape[1])
        return call(self, inputs, *args, **kwargs)

    monkeypatch.setattr(type(model), "__call__", counted)
    return calls


def test_the_budget_is_shared_and_kept(tiny: Tiny, monkeypatch: pytest.MonkeyPatch) -> None:
    """However many are prefilled in one batch: their tokens of one step are within the budget, but for each
    one's floor."""
    monkeypatch.setattr(prefill_batches, "MOST_PADDING_TOKENS", 2048)
    rows = Rows(tiny.backend(prefill_rows=4, kv_cache_bytes=0))
    sequences = [
        rows.admit(request(number, prompt_of(tokens, number), 40))
        for number, tokens in enumerate((30, 30, 30, 30, 30, 30, 600, 600))
    ]
    for budget, expected in ((64, 2), (40, 1), (200, 3), (64, 1), (400, 1), (11, 2)):
        if budget == 11:
            sequences.append(rows.admit(request(8, prompt_of(20, 8), 3)))
        before = sum(sequence.chunkable_tokens for sequence in sequences)
        result = rows.step(budget)
        assert len({prefill.request_id for prefill in result.prefills}) == expected
        computed = before - sum(sequence.chunkable_tokens for sequence in sequences)
        assert computed <= result.computed_prefill_tokens <= max(budget, 4 * 8)


def test_a_short_prompt_passes_long_ones(tiny: Tiny) -> None:
    """Eight long prompts fill the rows; a short one still has its first token in a few steps."""
    rows = Rows(tiny.backend(prefill_rows=8, kv_cache_bytes=0))
    for number in range(8):
        rows.admit(request(number, prompt_of(2000, number), 3))
    rows.step(256)
    rows.admit(request(99, prompt_of(20, 99), 3))
    heard = [token for _ in range(4) for token in rows.step(256).tokens]
    assert [token.request_id for token in heard][:1] == [99]


def test_any_budgets_give_the_same_tokens(tiny: Tiny) -> None:
    """Chunks of any size, changing from step to step."""
    generator = random.Random(8)
    submits = [request(number, prompt_of(generator.randrange(1, 200), number), 8) for number in range(12)]
    expected = {submit.request_id: alone(tiny.backend(), submit) for submit in submits}
    rows = Rows(tiny.backend())
    tokens: dict[int, list[int]] = {submit.request_id: [] for submit in submits}
    for submit in submits:
        rows.admit(submit)
    while rows.running:
        for token in rows.step(generator.choice([8, 20, 64, 300])).tokens:
            tokens[token.request_id].append(token.token)
    assert tokens == expected


@pytest.mark.parametrize("traits", [X86, replace(X86, submission_waits=False)], ids=["waits", "runs-ahead"])
def test_every_step_gives_a_token_and_no_model_call_is_for_nothing(
    tiny: Tiny, traits: Traits, monkeypatch: pytest.MonkeyPatch
) -> None:
    """From the prompt's end each step returns a token, also the first that overlaps and the one behind
    drafts; and none is computed behind the last tokens of answers whose length is known."""
    with forced(traits):
        backend = tiny.backend()
        calls = count_calls(monkeypatch, backend._model)
        answers = {1: 6, 2: 6}
        rows = Rows(backend)
        for number, tokens in answers.items():
            rows.admit(request(number, prompt_of(20, number), tokens))
        steps = 0
        while rows.running:
            result = rows.step()
            steps += 1
            assert sorted(token.request_id for token in result.tokens) == [1, 2]
    assert steps == 6
    assert calls.count(1) == 6


@pytest.mark.parametrize("traits", [X86, replace(X86, submission_waits=False)], ids=["waits", "runs-ahead"])
def test_where_the_graph_waits_no_call_is_built_ahead(
    tiny: Tiny, traits: Traits, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Scores that NumPy computes are evaluated while the call is built: built ahead, it would delay the
    tokens before it by a step."""
    monkeypatch.setattr(softmax, "_MANY_SCORES", 1)
    monkeypatch.setattr(attention, "FEW", 0)
    with forced(traits):
        rows = Rows(tiny.backend())
        rows.admit(request(1, prompt_of(20, 1), 4))
        pending = []
        while rows.running:
            assert rows.step().tokens
            pending.append(rows.last.has_pending)
    assert not any(pending)


def test_tokens_that_the_host_draws_are_returned_before_the_next_call_is_built(tiny: Tiny) -> None:
    """On x86 it has them all when the model is done. A greedy row's next call is built meanwhile."""
    cut = SEEDED
    with forced(X86):
        for sampling, built_ahead in ((cut, False), (GREEDY, True)):
            rows = Rows(tiny.backend())
            rows.admit(request(1, prompt_of(20, 1), 6, sampling=sampling))
            pending = []
            while rows.running:
                assert len(rows.step().tokens) == 1
                pending.append(rows.last.has_pending)
            assert len(pending) == 6
            assert any(pending) == built_ahead


@pytest.mark.parametrize("family", ["mamba", "nemotron_h", "rwkv7"])
def test_rows_that_cannot_be_padded_share_a_step_too(family: str) -> None:
    """Where padding would run through a state, all rows of a step read equally many tokens: a short prompt
    passes a long one, and each has the tokens that it has alone, whatever the budgets."""
    engine = engine_of(family)
    generator = random.Random(3)
    lengths = [150, 1, 2, 9, 30, 17, 30]
    submits = [engine.submit(words(length, at), max_tokens=4) for at, length in enumerate(lengths)]
    rows = Rows(engine.backend)
    for submit in submits:
        rows.admit(submit)
    ended: list[int] = []
    while len(ended) < len(submits):
        result = rows.step(generator.choice([8, 20, 64]))
        for token in result.tokens:
            engine.heard[token.request_id].tokens.append(token.token)
        ended += [retired.request_id for retired in result.retired]
    assert ended[-1] == submits[0].request_id
    for submit in submits:
        engine.check(submit)


def test_a_prompts_last_token_is_computed_with_those_who_decode(tiny: Tiny) -> None:
    """A row that joins costs no pass of its own: its chunk is one, and then it takes part in the others'."""
    calls: list[tuple[int, ...]] = []

    class Counted:
        def __call__(self, tokens: mx.array, cache: Any = None) -> Any:
            calls.append(tokens.shape)
            return tiny.model(tokens, cache=cache)

        layers = tiny.model.layers
        named_modules = tiny.model.named_modules

    loaded = LoadedModel(Counted(), tiny.ready, tiny.row_bytes)
    backend = MlxBackend(loaded, load_of(tiny.folder, kv_cache_bytes=0))
    rows = Rows(backend)
    for number in range(3):
        rows.admit(request(number, prompt_of(10, number), 9))
    for _ in range(3):
        rows.step()
    rows.admit(request(9, prompt_of(10, 9), 9))
    calls.clear()
    heard = [[token.request_id for token in rows.step().tokens] for _ in range(2)]
    # Pending tokens are returned first; then the newcomer is prefilled, and its first token comes with it.
    assert calls == [(1, 9), (4, 1)]
    assert heard == [[0, 1, 2], [0, 1, 2, 9]]
