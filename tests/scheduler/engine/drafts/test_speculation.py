"""What rows may write next, and which drafts a step verifies: those that are expected to pay, and never more
than the answer may have."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scheduler.engine.budget.learned import ChunkPeak
from scheduler.engine.budget.policy import Allowance
from scheduler.engine.budget.room import StepRoom
from scheduler.engine.drafts.row_drafts import SOURCES, RowDrafts, Source
from scheduler.engine.drafts.speculation import (
    LEAST_GAIN,
    MOST_DELAY,
    Draft,
    Proposal,
    Speculation,
    chosen,
)
from scheduler.engine.drafts.verify_costs import DRAFTED, VerifyCosts
from scheduler.engine.plan import PlanInput, StepPlan, plan
from scheduler.engine.planning.memory import Memory
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


def test_what_became_of_drafts_is_counted_by_source() -> None:
    """As far as the first that was rejected."""
    speculation = Speculation(_FREE)
    for source, proposed, accepted in (("grammar", 7, 5), ("grammar", 3, 0), ("short_match", 7, 7)):
        draft = Draft(1, tuple(range(proposed)), source)  # type: ignore[arg-type]
        speculation.count([draft], {1: [*range(accepted), 99]})
    assert speculation.counters.sources == {"grammar": (10, 5), "short_match": (7, 7)}


@given(st.integers(1, 8), st.integers(0, 200))
def test_no_step_has_more_positions_than_its_logits_may_take(rows: int, most: int) -> None:
    found = chosen([_proposal(number, 1.0) for number in range(rows)], rows, _FREE, most)
    width = 1 + max((len(draft.tokens) for draft in found), default=0)
    assert not found or rows * width <= most
    assert bool(found) == (most >= 2 * rows)


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


_COUNT = 15
_REPEATED = [*range(100, 120)]


def _row(prompt: list[int]) -> EngineSequence:
    return EngineSequence.of(request(1, prompt, 4000))


def _drafts(row: EngineSequence) -> RowDrafts:
    return RowDrafts.of(row, dict.fromkeys(SOURCES, 0.5))


def _candidates(
    drafts: RowDrafts, row: EngineSequence, forced: Sequence[int] = ()
) -> dict[Source, tuple[int, ...]]:
    return dict(drafts.candidates(row, forced, _COUNT))


def test_what_followed_the_text_s_last_tokens_may_follow_again() -> None:
    """The last 8 of them, and the last 3, each by its own latest place."""
    start = [1, 2, 3, 4, 5, 6, 7, 8]
    row = _row([*start, *_REPEATED, 9, 6, 7, 8, 30, 31, 32, *start])
    found = _candidates(_drafts(row), row)
    assert found["long_match"] == tuple(_REPEATED[:_COUNT])
    assert found["short_match"][:3] == (30, 31, 32)
    assert set(found) == {"long_match", "short_match"}


@given(right=st.integers(0, _COUNT), more=st.integers(0, 3))
def test_all_tokens_of_a_step_are_judged_once(right: int, more: int) -> None:
    """As far as the first that was not expected: nothing is known of what would have come behind it."""
    row = _row([1, 2, 3])
    drafts = _drafts(row)
    _candidates(drafts, row, range(20, 20 + _COUNT))
    row.tokens.extend([*range(20, 20 + right), *[7] * more])
    _candidates(drafts, row)
    judged = min(right + min(more, 1), _COUNT)
    weight = 1 - 0.8**judged
    seen = right / judged if judged else 0.0
    assert drafts.chances["grammar"] == pytest.approx(0.5 + weight * (seen - 0.5))
    assert drafts.everyone["grammar"] == pytest.approx(0.5 + weight / 8 * (seen - 0.5))
    _candidates(drafts, row)
    assert drafts.chances["grammar"] == pytest.approx(0.5 + weight * (seen - 0.5)), "once"
