"""What one row may write next: its sources, what they were worth so far, its place in the prediction."""

from __future__ import annotations

from array import array
from collections.abc import Sequence

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from scheduler.engine.drafts.row_drafts import SOURCES, RowDrafts, Source
from scheduler.engine.sequence import EngineSequence
from scheduler.shared.token_ids import compact
from tests.contracts.journal import request

_COUNT = 15
_REPEATED = [*range(100, 120)]


def _row(prompt: list[int], answer: Sequence[int] = (), prediction: Sequence[int] = ()) -> EngineSequence:
    submit = msgspec.structs.replace(request(1, prompt, 4000), prediction=compact(prediction))
    row = EngineSequence.of(submit)
    row.tokens.extend(answer)
    return row


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


_PREDICTION = [*range(200, 240)]


@pytest.mark.parametrize("written", range(0, 40, 3))
def test_the_prediction_is_followed_from_where_the_answer_is(written: int) -> None:
    """From its first token on, also before three of them are known."""
    row = _row([1, 2, 3], _PREDICTION[:written], _PREDICTION)
    expected = tuple(_PREDICTION[written : written + _COUNT])
    assert _candidates(_drafts(row), row).get("prediction", ()) == expected


def test_the_prediction_is_found_again_behind_another_word() -> None:
    """A word more, a word less, or another one: three tokens behind it the place is known."""
    edits = ([*_PREDICTION[:9], 7], [*_PREDICTION[:9], 7, 8, 9], _PREDICTION[:8])
    for start in edits:
        row = _row([1, 2, 3], start, _PREDICTION)
        drafts = _drafts(row)
        for known, token in enumerate(_PREDICTION[10:13]):
            row.tokens.append(token)
            assert ("prediction" in _candidates(drafts, row)) == (known == 2)
        assert _candidates(drafts, row)["prediction"] == tuple(_PREDICTION[13 : 13 + _COUNT])


def test_a_resumed_answer_goes_on_in_its_prediction() -> None:
    """Tokens from another engine count as the answer's."""
    submit = msgspec.structs.replace(
        request(1, [1, 2, 3, *_PREDICTION[:10]], 4000), done_tokens=10, prediction=compact(_PREDICTION)
    )
    row = EngineSequence.of(submit)
    found = _candidates(RowDrafts.of(row, dict.fromkeys(SOURCES, 0.5)), row)
    assert found["prediction"] == tuple(_PREDICTION[10 : 10 + _COUNT])
    assert row.tokens[:3] == array("I", [1, 2, 3])
