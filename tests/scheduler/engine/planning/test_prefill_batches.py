"""Which prompts are computed in one batch: alike ones, each batch in its turn, whatever arrives."""

from __future__ import annotations

from dataclasses import dataclass, field

from hypothesis import given
from hypothesis import strategies as st

from scheduler.engine.planning.prefill import LEAST_CHUNK_TOKENS, PrefillLimits, share
from scheduler.engine.planning.prefill_batches import (
    MOST_BATCHES,
    MOST_PADDING_TOKENS,
    MOST_STEPS,
    BegunBatch,
    next_batch,
    own_tokens,
    rows_of,
)
from scheduler.engine.sequence import EngineSequence
from tests.contracts.journal import request

_LIMITS = PrefillLimits(8, 1024)


def _prompt(number: int, left: int, cached: int = 0, in_place: int = 0) -> EngineSequence:
    """One with `left` tokens to compute in chunks behind a prefix hit."""
    row = EngineSequence.of(request(number, [1] * (cached + left + 1)))
    row.computed_tokens, row.in_place_tokens, row.admission = cached, min(in_place, cached), number
    return row


@dataclass
class _Batches:
    """A back end's batches, as `Batch` keeps them."""

    limits: PrefillLimits = _LIMITS
    left: dict[int, EngineSequence] = field(default_factory=dict)
    begun: list[BegunBatch] = field(default_factory=list)

    def step(self, budget_tokens: int) -> list[int]:
        """The rows of the step."""
        batch = next_batch(self.left.values(), self.begun, self.limits.rows)
        chunks = share(batch, budget_tokens, self.limits)
        computed = {chunk.request_id for chunk in chunks}
        others = [one for one in self.begun if one.rows.isdisjoint(computed)]
        assert rows_of(self.begun) <= computed | rows_of(others), "a row of the batch has no chunk"
        for chunk in chunks:
            self.left[chunk.request_id].computed_tokens += chunk.tokens
        self.left = {number: row for number, row in self.left.items() if row.chunkable_tokens}
        self.begun = [BegunBatch(one.rows, one.passed_steps + 1) for one in others]
        if rest := frozenset(computed & self.left.keys()):
            self.begun.append(BegunBatch(rest))
        return sorted(computed)


prompts = st.tuples(
    st.integers(0, 30),
    st.one_of(st.integers(1, 300), st.integers(1, 12_000)),
    st.one_of(st.just(0), st.integers(0, 20_000)),
    st.integers(0, 20_000),
)


@given(st.lists(prompts, min_size=1, max_size=24), st.integers(8, 1500), st.sampled_from((1, 2, 8)))
def test_all_are_computed_each_in_its_turn(
    arrivals: list[tuple[int, int, int, int]], budget_tokens: int, rows: int
) -> None:
    """No batch is passed for ever; none is far more padded than it may be, unless there are already as many
    as there may be; and with one row at a time there is one batch."""
    batches = _Batches(PrefillLimits(rows, 1024))
    for step in range(20_000):
        for number, (at, *sizes) in enumerate(arrivals):
            if at == step:
                batches.left[number] = _prompt(number, *sizes)
        known = {number: own_tokens(row) for number, row in batches.left.items()}
        begun = rows_of(batches.begun)
        computed = batches.step(budget_tokens)
        assert bool(computed) == bool(known)
        assert all(one.passed_steps < MOST_STEPS + MOST_BATCHES for one in batches.begun)
        assert len(batches.begun) <= (1 if rows == 1 else MOST_BATCHES)
        if len(batches.begun) < MOST_BATCHES and rows > 1 and not begun & {*computed}:
            own = [known[number] for number in computed]
            assert not own or max(own) - min(own) <= max(MOST_PADDING_TOKENS, min(own))
        if step > 30 and not batches.left:
            return
    raise AssertionError("prompts were left")


def test_a_question_does_not_wait_for_a_long_prompt() -> None:
    """It is computed in a batch of its own, at once, and the long prompt goes on in every third step."""
    batches = _Batches()
    batches.left[0] = _prompt(0, 20_000)
    for _ in range(8):
        assert batches.step(1024) == [0]
    for number in range(1, 9):
        batches.left[number] = _prompt(number, 512)
    steps = [batches.step(1024) for _ in range(6)]
    assert steps == [[1, 2], [3, 4], [0], [5, 6], [7, 8], [0]]
    assert not set(batches.left) - {0}


def test_what_is_attended_to_in_place_pads_nobody() -> None:
    """A prefix that rows share is no padding; its copy is."""
    for in_place, together in ((10_000, True), (0, False)):
        batches = _Batches()
        batches.left[0] = _prompt(0, 500, cached=10_000, in_place=in_place)
        assert batches.step(LEAST_CHUNK_TOKENS) == [0]
        batches.left[1] = _prompt(1, 60)
        assert (batches.step(200) == [0, 1]) == together
