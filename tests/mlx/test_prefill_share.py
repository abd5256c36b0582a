"""Rows in prefill share a step: a short prompt passes long ones, and the exactness of none depends on it."""

from __future__ import annotations

import random
from collections import deque
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import mlx.core as mx
import pytest
from hypothesis import given
from hypothesis import strategies as st

from scheduler.engine.mlx_backend import MlxBackend
from scheduler.engine.rows.prefill_share import LEAST_CHUNK_TOKENS, PrefillShare
from scheduler.engine.sequence import Sequence
from tests.contracts.journal import alone, prompt_of, request
from tests.mlx.conftest import Tiny
from tests.mlx.loads import load_of
from tests.mlx.reuse import engine_of, words


def test_the_budget_is_shared_and_kept(tiny: Tiny) -> None:
    """However many read: their tokens of one step are within the budget, but for each one's least. A small
    budget is for few; who has begun goes on."""
    backend = tiny.backend(prefill_rows=4, kv_cache_bytes=0)
    for number in range(6):
        backend.admit(Sequence.of(request(number, prompt_of(600, number), 3)))
    for budget, rows in ((64, 1), (200, 2), (64, 2), (400, 4), (33, 4)):
        before = {row.request_id: row.cached.done_tokens for row in backend._by_uid.values()}
        result = backend.step(budget)
        assert len(result.prefills) == rows
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


@dataclass
class _Reading:
    """What PrefillShare sees of a generator, which reads as it is told."""

    prefill_batch_size: int = 0
    prefill_step_size: int = 0
    _prompt_batch: Any = field(default_factory=SimpleNamespace)
    _currently_processing: list[Any] = field(default_factory=list)
    _unprocessed_sequences: deque[Any] = field(default_factory=deque)

    def arrive(self, uid: int, tokens: int) -> None:
        self._unprocessed_sequences.append((uid, [[0] * tokens, [0]]))

    def step(self) -> tuple[list[int], int]:
        """Who joined, and how many tokens were computed for all."""
        joined: list[int] = []
        while self._unprocessed_sequences and len(self._currently_processing) < self.prefill_batch_size:
            uid, pieces = self._unprocessed_sequences.popleft()
            self._currently_processing.append([pieces, uid])
            joined.append(uid)
        chunks = [min(len(pieces[0]), self.prefill_step_size) for pieces, _ in self._currently_processing]
        for pieces, _ in self._currently_processing:
            del pieces[0][: self.prefill_step_size]
        self._currently_processing = [row for row in self._currently_processing if row[0][0]]
        return joined, len(chunks) * max(chunks, default=0)


@given(
    prompts=st.lists(st.tuples(st.integers(0, 12), st.integers(1, 900)), min_size=1, max_size=60),
    budgets=st.lists(st.integers(1, 1500), min_size=1, max_size=5),
)
def test_every_prompt_is_read_within_the_budgets(prompts: list[tuple[int, int]], budgets: list[int]) -> None:
    """Whoever arrives when, with whatever budgets: no step computes more than its own, but for each row's
    least, and as long as there are prompts each step reads of them."""
    share, reading = PrefillShare(8, 2048, padded=True), _Reading()
    arrivals = deque(sorted((at, tokens, uid) for uid, (at, tokens) in enumerate(prompts)))
    uids, most = 0, sum(tokens for _, tokens in prompts) + 13
    for step in range(most):
        while arrivals and arrivals[0][0] <= step:
            reading.arrive(uids, arrivals.popleft()[1])
            uids += 1
        budget = budgets[step % len(budgets)]
        share.divide(reading, budget)
        _, computed = reading.step()
        rows = reading.prefill_batch_size
        assert computed <= max(budget, rows * LEAST_CHUNK_TOKENS)
        if not (arrivals or reading._unprocessed_sequences or reading._currently_processing):
            return
        assert computed or not (reading._unprocessed_sequences or reading._currently_processing)
    raise AssertionError("prompts were left")


def test_a_prompt_is_passed_by_few() -> None:
    """Shorter ones keep coming, two for each place: after sixteen of them it is its turn all the same."""
    share, reading = PrefillShare(8, 2048, padded=True), _Reading()
    for uid in range(2):
        reading.arrive(uid, 150)
    share.divide(reading, 192)
    reading.step()
    reading.arrive(2, 200)
    passed: list[int] = []
    for uid in range(3, 200, 2):
        reading.arrive(uid, 150)
        reading.arrive(uid + 1, 150)
        share.divide(reading, 192)
        joined, _ = reading.step()
        passed += joined
        if 2 in joined:
            break
    assert passed.index(2) <= 16


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
    heard = [[token.request_id for token in backend.step().tokens] for _ in range(2)]
    # What was owed is told first; then the newcomer's prompt is read, and its first token comes with it.
    assert calls == [(1, 9), (4, 1)]
    assert heard == [[0, 1, 2], [0, 1, 2, 9]]
