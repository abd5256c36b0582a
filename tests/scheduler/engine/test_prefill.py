"""How prompts share a step's prefill: short ones pass long ones, and none starves."""

from __future__ import annotations

from collections import deque
from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from scheduler.engine.prefill import (
    LEAST_CHUNK_TOKENS,
    MOST_PASSES,
    Chunk,
    PrefillLimits,
    Prompt,
    padded_tokens,
    share,
)

_LIMITS = PrefillLimits(8, 2048)


class _Prompts:
    """Prompts that are prefilled as `share` says."""

    def __init__(self, limits: PrefillLimits = _LIMITS) -> None:
        self.left: dict[int, Prompt] = {}
        self._limits = limits
        self._arrivals = 0

    def arrive(self, tokens: int) -> int:
        number = self._arrivals = self._arrivals + 1
        self.left[number] = Prompt(number, number, tokens, tokens, begun=False)
        return number

    def step(self, budget_tokens: int) -> tuple[tuple[Chunk, ...], list[int]]:
        """The step's chunks, and who began with it."""
        chunks = share(list(self.left.values()), budget_tokens, self._limits)
        new = [chunk.request_id for chunk in chunks if not self.left[chunk.request_id].begun]
        for chunk in chunks:
            prompt = self.left.pop(chunk.request_id)
            if left := prompt.left_tokens - chunk.tokens:
                self.left[chunk.request_id] = replace(prompt, left_tokens=left, until_pause=left, begun=True)
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
    reading = _Prompts(PrefillLimits(8, 2048, padded))
    arrivals = deque(sorted(prompts))
    for step in range(sum(tokens for _, tokens in prompts) + 13):
        while arrivals and arrivals[0][0] <= step:
            reading.arrive(arrivals.popleft()[1])
        begun = {number for number, prompt in reading.left.items() if prompt.begun}
        budget = budgets[step % len(budgets)]
        expected = bool(reading.left)
        chunks, _ = reading.step(budget)
        assert begun <= {chunk.request_id for chunk in chunks}
        assert padded_tokens(chunks) <= max(budget, len(chunks) * LEAST_CHUNK_TOKENS)
        assert bool(chunks) == expected
        assert padded or len({chunk.tokens for chunk in chunks}) <= 1
        if not arrivals and not reading.left:
            return
    raise AssertionError("prompts were left")


def test_a_prompt_is_passed_by_few() -> None:
    """Shorter ones keep coming, two for each place: after sixteen of them it is its turn all the same."""
    reading = _Prompts()
    for _ in range(2):
        reading.arrive(150)
    reading.step(192)
    long = reading.arrive(200)
    passed: list[int] = []
    while long not in passed:
        for _ in range(2):
            reading.arrive(150)
        passed += reading.step(192)[1]
    assert passed.index(long) <= MOST_PASSES


def test_a_small_budget_is_for_few() -> None:
    """A row for each 96 tokens; prompts that have begun continue, however small the budget becomes."""
    reading = _Prompts(PrefillLimits(4, 2048))
    for _ in range(6):
        reading.arrive(600)
    rows = [len(reading.step(budget)[0]) for budget in (64, 200, 64, 400, 33)]
    assert rows == [1, 2, 2, 4, 4]


def test_a_chunk_ends_at_a_checkpoint() -> None:
    """Of that row alone where shorter chunks are padded; of all rows where padding would change a state."""
    prompts = [Prompt(1, 1, 500, 20, begun=True), Prompt(2, 2, 500, 500, begun=True)]
    assert share(prompts, 200, PrefillLimits(8, 2048)) == (Chunk(1, 20), Chunk(2, 100))
    assert share(prompts, 200, PrefillLimits(8, 2048, padded=False)) == (Chunk(1, 20), Chunk(2, 20))
