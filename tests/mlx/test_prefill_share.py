"""Rows in prefill share a step: a short prompt passes long ones, and the exactness of none depends on it."""

from __future__ import annotations

import random
from typing import Any

import mlx.core as mx
import pytest

from scheduler.engine.mlx_backend import MlxBackend
from scheduler.engine.sequence import Sequence
from tests.contracts.journal import alone, prompt_of, request
from tests.mlx.conftest import Tiny
from tests.mlx.loads import load_of
from tests.mlx.reuse import engine_of, words


def test_the_budget_is_shared_and_kept(tiny: Tiny) -> None:
    """However many read: their tokens of one step are within the budget, but for each one's least."""
    backend = tiny.backend(prefill_rows=4, kv_cache_bytes=0)
    for number in range(6):
        backend.admit(Sequence.of(request(number, prompt_of(300, number), 3)))
    for budget in (200, 64, 400, 33):
        before = {row.request_id: row.cached.done_tokens for row in backend._by_uid.values()}
        result = backend.step(budget)
        assert len(result.prefills) == 4
        computed = sum(prefill.done - before[prefill.request_id] for prefill in result.prefills)
        assert computed <= result.computed_prefill_tokens <= max(budget, 4 * 8)


def test_a_short_prompt_passes_long_ones(tiny: Tiny) -> None:
    """Eight long prompts fill the rows; a short one still has its first token in a few steps."""
    backend = tiny.backend(prefill_rows=8, kv_cache_bytes=0)
    for number in range(8):
        backend.admit(Sequence.of(request(number, prompt_of(2000, number), 3)))
    backend.step(256)
    backend.admit(Sequence.of(request(99, prompt_of(20, 99), 3)))
    heard = [token for _ in range(4) for token in backend.step(256).tokens]
    assert [token.request_id for token in heard][:1] == [99]


def test_any_budgets_give_the_same_tokens(tiny: Tiny) -> None:
    """Chunks of any size, changing from step to step."""
    generator = random.Random(8)
    submits = [request(number, prompt_of(generator.randrange(1, 200), number), 8) for number in range(12)]
    expected = {submit.request_id: alone(tiny.backend(), submit) for submit in submits}
    backend = tiny.backend()
    tokens: dict[int, list[int]] = {submit.request_id: [] for submit in submits}
    for submit in submits:
        backend.admit(Sequence.of(submit))
    while backend._by_uid:
        for token in backend.step(generator.choice([8, 20, 64, 300])).tokens:
            tokens[token.request_id].append(token.token)
    assert tokens == expected


@pytest.mark.parametrize("family", ["mamba", "nemotron_h", "rwkv7"])
def test_rows_that_cannot_be_padded_share_a_step_too(family: str) -> None:
    """Where padding would run through a state, all rows of a step read equally many tokens: a short prompt
    passes a long one, and each has the tokens that it has alone, whatever the budgets."""
    engine = engine_of(family)
    generator = random.Random(3)
    lengths = [500, 1, 2, 9, 30, 17, 30]
    submits = [engine.submit(words(length, at), max_tokens=4) for at, length in enumerate(lengths)]
    for submit in submits:
        engine.backend.admit(Sequence.of(submit))
    ended: list[int] = []
    while len(ended) < len(submits):
        result = engine.backend.step(generator.choice([8, 20, 64]))
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

    backend = MlxBackend(Counted(), load_of(tiny.folder, kv_cache_bytes=0), tiny.ready, tiny.row_bytes)
    for number in range(3):
        backend.admit(Sequence.of(request(number, prompt_of(10, number), 9)))
    for _ in range(3):
        backend.step()
    backend.admit(Sequence.of(request(9, prompt_of(10, 9), 9)))
    calls.clear()
    heard = [[token.request_id for token in backend.step().tokens] for _ in range(3)]
    assert calls == [(3, 1), (1, 9), (4, 1), (4, 1)]
    assert heard == [[0, 1, 2], [0, 1, 2], [0, 1, 2, 9]]
