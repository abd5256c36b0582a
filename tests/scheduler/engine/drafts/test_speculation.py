"""Which drafts a step verifies: those that are expected to pay, and never more than the answer may have."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scheduler.engine.budget.learned import ChunkPeak
from scheduler.engine.budget.policy import Allowance
from scheduler.engine.budget.room import StepRoom
from scheduler.engine.drafts.speculation import (
    LEAST_GAIN,
    MOST_DELAY,
    Draft,
    Proposal,
    Speculation,
    chosen,
)
from scheduler.engine.drafts.verify_costs import DRAFTED, VerifyCosts
from scheduler.engine.memory import Memory
from scheduler.engine.plan import PlanInput, StepPlan, plan
from scheduler.engine.sequence import EngineSequence
from scheduler.shared.row_bytes import RowBytes
from tests.contracts.journal import request
from tests.scheduler.engine.test_plan import state_of


class _Known(VerifyCosts):
    """Costs that are known, whatever was measured."""

    def __init__(self, ratios: Mapping[int, float]) -> None:
        super().__init__()
        self._known = ratios

    def ratio(self, rows: int, drafted: int) -> float:
        return self._known[drafted]


_FREE = _Known(dict.fromkeys(DRAFTED, 1.0))


def _proposal(number: int, chance: float, tokens: int = 15, behind_pending: bool = False) -> Proposal:
    return Proposal(Draft(number, tuple(range(tokens)), "long_match"), chance, behind_pending)


_PROPOSALS = st.lists(
    st.builds(_proposal, st.integers(0, 999), st.floats(0, 1), st.integers(1, 15), st.booleans()), max_size=8
)
_COSTS = st.lists(
    st.one_of(st.floats(0.5, 6.0), st.just(float("inf"))), min_size=len(DRAFTED), max_size=len(DRAFTED)
)


@given(_PROPOSALS, st.integers(0, 8), _COSTS)
def test_the_choice_is_the_best_by_its_own_numbers(
    proposals: list[Proposal], others: int, ratios: list[float]
) -> None:
    """No other width gives more tokens a second among those that delay no other row for long; plain steps
    give less, by LEAST_GAIN; each draft is the beginning of its proposal."""
    rows, costs = len(proposals) + others, _Known(dict(zip(DRAFTED, ratios, strict=True)))

    def rate(width: int) -> float:
        return (rows + sum(one.expected_tokens(width) for one in proposals)) / costs.ratio(rows, width)

    found = chosen(proposals, rows, costs, 1024)
    delays = [cost > MOST_DELAY and others > 0 for cost in ratios]
    tried = DRAFTED[: delays.index(True)] if True in delays else DRAFTED
    best = max((rate(width) for width in tried), default=0.0)
    if not found:
        assert not proposals or best <= rows * LEAST_GAIN
        return
    width = max(len(draft.tokens) for draft in found)
    assert [draft.request_id for draft in found] == [one.draft.request_id for one in proposals]
    for draft, one in zip(found, proposals, strict=True):
        assert draft.tokens == one.draft.tokens[: len(draft.tokens)]
    # All proposals may be shorter than the chosen width.
    allowed = [each for each in tried if rate(each) == best]
    assert any(width == max(min(each, len(one.draft.tokens)) for one in proposals) for each in allowed)
    assert best > rows * LEAST_GAIN


def test_expected_tokens_are_those_of_a_run_that_ends_with_the_first_wrong_one() -> None:
    assert _proposal(1, 0.5).expected_tokens(3) == pytest.approx(0.5 + 0.25 + 0.125)
    assert _proposal(1, 0.5, behind_pending=True).expected_tokens(2) == pytest.approx(0.25 + 0.125)
    assert _proposal(1, 1.0, tokens=2).expected_tokens(15) == 2


_TEXT = [1, 2, 3, 4]


def _decoding(number: int = 1, max_tokens: int = 100, generated: int = 0, repeats: int = 5) -> EngineSequence:
    row = EngineSequence.of(request(number, _TEXT * repeats, max_tokens))
    row.tokens.extend(_TEXT[at % 4] for at in range(generated))
    row.computed_tokens = len(row.tokens) - 1 if generated else row.prompt_tokens
    return row


@given(st.integers(1, 30), st.integers(0, 29), st.booleans())
def test_no_draft_goes_beyond_the_answer_s_end(most: int, generated: int, has_pending: bool) -> None:
    """A drafted token needs one drawn behind it; a pending one comes before."""
    row = _decoding(max_tokens=most, generated=min(generated, most - 1))
    found = Speculation(_FREE).proposals([row], {}, has_pending)
    left = most - row.generated_tokens - has_pending - 1
    if left <= 0:
        assert not found
        return
    assert len(found[0].draft.tokens) == min(left, DRAFTED[-1])


def test_a_row_that_copies_is_verified_in_the_end() -> None:
    """With the costs of 8 rows of a model of 135M parameters on two cores, and a token pending, as in every
    step with overlap: fifteen right drafts are four times the tokens a second, and what the row writes shows
    that they would have been right."""
    costs = _Known({1: 1.39, 3: 1.8, 7: 2.6, 15: 4.0})
    speculation, rows = Speculation(costs), [_decoding(number, 900) for number in range(8)]
    for position in range(500):
        if any(
            len(draft.tokens) > 1 for draft in chosen(speculation.proposals(rows, {}, True), 8, costs, 1024)
        ):
            return
        for row in rows:
            row.tokens.append(_TEXT[position % 4])
    raise AssertionError("what is never verified is never learnt")


def test_what_became_of_the_prediction_is_counted() -> None:
    """OpenAI's two counts; other sources count nothing there."""
    speculation = Speculation(_FREE)
    speculation.proposals([_decoding()], {}, False)
    for source, proposed, accepted in (("prediction", 7, 5), ("prediction", 3, 0), ("short_match", 7, 7)):
        draft = Draft(1, tuple(range(proposed)), source)  # type: ignore[arg-type]
        speculation.count([draft], {1: [*range(accepted), 99]})
    assert speculation.counters.sources == {"prediction": (10, 5), "short_match": (7, 7)}
    assert speculation.ended(1) == (5, 5)


@given(st.integers(1, 8), st.integers(0, 200))
def test_no_step_has_more_positions_than_its_logits_may_take(rows: int, most: int) -> None:
    found = chosen([_proposal(number, 1.0) for number in range(rows)], rows, _FREE, most)
    width = 1 + max((len(draft.tokens) for draft in found), default=0)
    assert not found or rows * width <= most
    assert bool(found) == (most >= 2 * rows)


def test_saved_seconds_are_those_of_plain_steps_for_the_same_tokens() -> None:
    speculation = Speculation()
    for _ in range(30):
        speculation.learn(0, 2, 2, 0.01)
    speculation.learn(3, 5, 2, 0.015)
    assert speculation.counters.saved_seconds == pytest.approx(0.01 * 5 / 2 - 0.015, rel=1e-3)
    speculation.learn(3, 2, 2, 0.03)
    assert speculation.counters.saved_seconds == pytest.approx(0.01 * 7 / 2 - 0.045, rel=1e-3)


def _state(rows: Sequence[EngineSequence], **changes: object) -> PlanInput:
    proposals = [_proposal(row.request_id, 1.0) for row in rows if not row.prefilling]
    state = state_of([], list(rows))
    fields = {"verified_tokens": 1024, "proposals": proposals, "costs": _FREE} | changes
    return replace(state, **fields)  # type: ignore[arg-type]


def _planned(rows: Sequence[EngineSequence], **changes: object) -> StepPlan:
    return plan(_state(rows, **changes), now=0.0)


def test_a_plan_verifies_what_pays() -> None:
    todo = _planned([_decoding(1, generated=3), _decoding(2, generated=3)])
    assert todo.decode == (1, 2)
    assert [(draft.request_id, len(draft.tokens)) for draft in todo.drafts] == [(1, 15), (2, 15)]
    assert todo.foresee


def test_pending_tokens_are_returned_before_drafts_follow_them() -> None:
    """The row's last token must be known: the model does not run in this step."""
    todo = _planned([_decoding(1, generated=3)], has_pending=True)
    assert (todo.emit_pending, todo.drafts, todo.decode) == (True, (), ())
    assert todo.foresee, "what grammars force is asked for before each step"
    plain = _planned(
        [_decoding(1, generated=3)], has_pending=True, costs=_Known(dict.fromkeys(DRAFTED, 99.0))
    )
    assert not plain.emit_pending
    assert plain.decode == (1,)


def test_nothing_is_drafted_while_memory_is_short() -> None:
    """Drafts take activations, and room in the arrays."""
    for saving in (False, True):
        room = StepRoom(1 << 30, 0, 0.0, RowBytes(8), ChunkPeak(1 << 20, 512), saving)
        todo = _planned([_decoding(1, generated=3)], allowance=Allowance(room=room))
        assert bool(todo.drafts) is not saving


def test_a_preempted_row_s_drafts_go_with_it() -> None:
    """And those of the rows that stay are chosen without it."""
    rows = [_decoding(number, generated=3 + number) for number in (1, 2)]
    memory = Memory(30 * 8, RowBytes(8), 30 * 8, lambda: 0)
    todo = _planned(rows, memory=memory)
    assert todo.preempt == (1,)
    assert [draft.request_id for draft in todo.drafts] == [2]
