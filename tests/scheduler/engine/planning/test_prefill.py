"""How prompts share a step's prefill: short ones pass long ones, and none starves."""

from __future__ import annotations

from collections import deque
from itertools import accumulate

from hypothesis import given
from hypothesis import strategies as st

from scheduler.engine.planning.prefill import (
    LEAST_CHUNK_TOKENS,
    MOST_PASSES,
    Chunk,
    PrefillLimits,
    padded_tokens,
    share,
)
from scheduler.engine.planning.prefill_batches import BegunBatch, NextBatch, next_batch
from scheduler.engine.sequence import EngineSequence
from tests.contracts.journal import request

_LIMITS = PrefillLimits(8, 2048)


def _sequence(number: int, tokens: int, checkpoints: tuple[int, ...] = ()) -> EngineSequence:
    """One whose prompt has this many tokens to compute in chunks."""
    sequence = EngineSequence.of(request(number, [1] * (tokens + 1)))
    sequence.admission, sequence.checkpoints = number, checkpoints
    return sequence


class _Prompts:
    """Prompts that are prefilled as `share` decides."""

    def __init__(self, limits: PrefillLimits = _LIMITS) -> None:
        self.left: dict[int, EngineSequence] = {}
        self.begun: set[int] = set()
        """Those in the middle of their prefill."""
        self._limits = limits
        self._arrivals = 0

    def arrive(self, tokens: int) -> int:
        number = self._arrivals = self._arrivals + 1
        self.left[number] = _sequence(number, tokens)
        return number

    def step(self, budget_tokens: int) -> tuple[tuple[Chunk, ...], list[int]]:
        """The step's chunks, and the prompts that began with it."""
        batches = [BegunBatch(frozenset(self.begun))] if self.begun else []
        chunks = share(
            next_batch(self.left.values(), batches, self._limits.rows), budget_tokens, self._limits
        )
        new = [chunk.request_id for chunk in chunks if chunk.request_id not in self.begun]
        for chunk in chunks:
            prompt = self.left[chunk.request_id]
            prompt.computed_tokens += chunk.tokens
            self.begun.add(chunk.request_id)
            if not prompt.chunkable_tokens:
                del self.left[chunk.request_id]
                self.begun.remove(chunk.request_id)
        return chunks, new


@given(
    prompts=st.lists(st.tuples(st.integers(0, 12), st.integers(1, 900)), min_size=1, max_size=60),
    budgets=st.lists(st.integers(1, 1500), min_size=1, max_size=5),
    padded=st.booleans(),
)
def test_every_prompt_is_prefilled_within_the_budgets(
    prompts: list[tuple[int, int]], budgets: list[int], padded: bool
) -> None:
    """Whatever arrives when, with whatever budgets: no step computes more than its own, but for each row's
    floor, and as long as there are prompts each step computes some of them, and of all that have begun."""
    reading = _Prompts(PrefillLimits(8, 512, padded))
    arrivals = deque(sorted(prompts))
    for step in range(sum(tokens for _, tokens in prompts) + 13):
        while arrivals and arrivals[0][0] <= step:
            reading.arrive(arrivals.popleft()[1])
        begun = set(reading.begun)
        budget = budgets[step % len(budgets)]
        expected = bool(reading.left)
        chunks, _ = reading.step(budget)
        assert begun <= {chunk.request_id for chunk in chunks}
        assert padded_tokens(chunks) <= max(budget, len(chunks) * LEAST_CHUNK_TOKENS)
        assert all(chunk.tokens <= 512 for chunk in chunks)
        assert bool(chunks) == expected
        assert padded or len({chunk.tokens for chunk in chunks}) <= 1
        if not arrivals and not reading.left:
            return
    raise AssertionError("prompts were left")


def test_a_prompt_is_passed_by_few() -> None:
    """Shorter ones keep coming, two in each step: after sixteen of them it is its turn all the same."""
    reading = _Prompts()
    reading.arrive(250)
    reading.step(192)
    long = reading.arrive(200)
    passed: list[int] = []
    while long not in passed:
        for _ in range(2):
            reading.arrive(150)
        passed += reading.step(192)[1]
    assert passed.index(long) <= MOST_PASSES


def test_a_much_shorter_prompt_is_read_beside_a_long_one() -> None:
    """Although it does not end within a step, where streams keep steps small."""
    reading = _Prompts()
    reading.arrive(1600)
    reading.step(64)
    short = reading.arrive(300)
    for _ in range(12):
        reading.step(64)
    assert list(reading.left) == [short - 1]


@given(
    tokens=st.lists(st.integers(1, 900), min_size=1, max_size=12),
    budget=st.integers(LEAST_CHUNK_TOKENS, 1500),
)
def test_all_prompts_end_as_soon_as_in_sequence(tokens: list[int], budget: int) -> None:
    """The sum of the steps to each prompt's end is not above that of the shortest first, each by itself."""
    reading = _Prompts()
    for one in tokens:
        reading.arrive(one)
    ended: list[int] = []
    step = 0
    while reading.left:
        step += 1
        before = len(reading.left)
        reading.step(budget)
        ended += [step] * (before - len(reading.left))
    alone = list(accumulate(-(-one // budget) for one in sorted(tokens)))
    assert sum(ended) <= sum(alone)


def test_a_chunk_ends_at_a_checkpoint() -> None:
    """The chunk of that row alone ends where shorter chunks are padded, those of all rows where padding
    would change a state."""
    prompts = [_sequence(1, 500, checkpoints=(20,)), _sequence(2, 500)]
    batch = NextBatch(prompts)
    assert share(batch, 200, PrefillLimits(8, 2048)) == (Chunk(1, 20), Chunk(2, 100))
    assert share(batch, 200, PrefillLimits(8, 2048, padded=False)) == (Chunk(1, 20), Chunk(2, 20))
