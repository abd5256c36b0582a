"""What one row may write next: its sources, its rest after wrong drafts, its place in the prediction."""

from __future__ import annotations

from array import array
from collections.abc import Sequence as Tokens
from itertools import pairwise

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from scheduler.engine.drafts.row_drafts import SOURCES, RowDrafts, Source, moved
from scheduler.engine.sequence import Sequence
from tests.contracts.journal import request

_COUNT = 15
_REPEATED = [*range(100, 120)]


def _row(prompt: list[int], answer: Tokens[int] = (), prediction: Tokens[int] = ()) -> Sequence:
    submit = msgspec.structs.replace(request(1, prompt, 4000), prediction=tuple(prediction))
    row = Sequence.of(submit)
    row.tokens.extend(answer)
    return row


def _drafts(row: Sequence) -> RowDrafts:
    return RowDrafts.of(row, dict.fromkeys(SOURCES, 0.5))


def _candidates(drafts: RowDrafts, row: Sequence, forced: Tokens[int] = ()) -> dict[Source, tuple[int, ...]]:
    return dict(drafts.candidates(row, forced, _COUNT))


def test_what_followed_the_text_s_last_tokens_may_follow_again() -> None:
    """The last 8 of them, and the last 3, each by its own latest place."""
    start = [1, 2, 3, 4, 5, 6, 7, 8]
    row = _row([*start, *_REPEATED, 9, 6, 7, 8, 30, 31, 32, *start])
    found = _candidates(_drafts(row), row)
    assert found["long_match"] == tuple(_REPEATED[:_COUNT])
    assert found["short_match"][:3] == (30, 31, 32)
    assert set(found) == {"long_match", "short_match"}


def test_what_repeats_goes_on_repeating() -> None:
    """Where the text ends before enough is drafted."""
    row = _row([1, 2, 3, 4] * 3)
    assert _candidates(_drafts(row), row)["short_match"] == ((1, 2, 3, 4) * 4)[:_COUNT]


def test_nothing_is_drafted_where_nothing_came_back() -> None:
    row = _row(_REPEATED)
    assert _candidates(_drafts(row), row) == {}


def test_what_the_grammar_forces_comes_first_and_always() -> None:
    """Also while the row rests."""
    row = _row([1, 2, 3, 4] * 3)
    drafts = _drafts(row)
    assert list(_candidates(drafts, row, (7, 8))) == ["grammar", "long_match", "short_match"]
    drafts.judge("short_match", 3, 0)
    assert _candidates(drafts, row, (7, 8)) == {"grammar": (7, 8)}
    assert _candidates(drafts, row, range(40)) == {"grammar": tuple(range(_COUNT))}


def test_a_rest_doubles_up_to_64_tokens() -> None:
    """While no draft is ever chosen: the row is left in peace."""
    row = _row([1, 2, 3, 4] * 3)
    drafts, proposed_at = _drafts(row), []
    for position in range(400):
        if _candidates(drafts, row):
            proposed_at.append(position)
            drafts.judge("short_match", 7, 0)
        row.tokens.append(1 + position % 4)
    gaps = [second - first for first, second in pairwise(proposed_at)]
    assert gaps == [2, 4, 8, 16, 32, *[64] * 5]


def test_an_accepted_draft_ends_the_rests() -> None:
    row = _row([1, 2, 3, 4] * 3)
    drafts = _drafts(row)
    for _ in range(4):
        drafts.judge("short_match", 3, 0)
    row.tokens.extend([1, 2, 3, 4] * 20)
    assert _candidates(drafts, row)
    drafts.judge("short_match", 3, 1)
    row.tokens.extend([1, 2])
    assert _candidates(drafts, row)
    drafts.judge("short_match", 3, 0)
    row.tokens.append(3)
    assert not _candidates(drafts, row), "the first rest is of one token again"
    row.tokens.append(4)
    assert _candidates(drafts, row)


def test_a_grammar_s_drafts_cost_no_rest() -> None:
    """They are judged by themselves: a forced token may be what a thinking budget replaces."""
    row = _row([1, 2, 3, 4] * 3)
    drafts = _drafts(row)
    drafts.judge("grammar", 5, 0)
    assert _candidates(drafts, row)


@given(
    chance=st.floats(0, 1),
    judged=st.integers(1, 16),
    accepted=st.integers(0, 16),
    slowness=st.integers(1, 8),
)
def test_a_chance_moves_towards_what_was_seen(
    chance: float, judged: int, accepted: int, slowness: int
) -> None:
    """And never beyond it; a longer draft says more, a slower one follows less."""
    accepted = min(accepted, judged)
    seen = accepted / judged
    found = moved(chance, accepted, judged, slowness)
    assert 0 <= found <= 1
    assert abs(found - seen) <= abs(chance - seen)
    assert abs(found - chance) <= abs(moved(chance, accepted, judged, 1) - chance) + 1e-12
    assert abs(found - chance) <= abs(moved(chance, 2 * accepted, 2 * judged, slowness) - chance) + 1e-12


def test_chances_are_of_each_source() -> None:
    row = _row([1, 2, 3, 4] * 3)
    drafts = _drafts(row)
    for _ in range(20):
        drafts.judge("long_match", 7, 7)
        drafts.judge("short_match", 7, 0)
    assert drafts.chances["long_match"] > 0.99
    assert drafts.chances["short_match"] < 0.02
    assert drafts.chances["grammar"] == drafts.chances["prediction"] == 0.5


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


def test_an_answer_that_begins_otherwise_is_not_taken_for_the_prediction() -> None:
    for answer in ([201], [200, 202], [9, 8, 7, 6]):
        row = _row([1, 2, 3], answer, _PREDICTION)
        assert "prediction" not in _candidates(_drafts(row), row)


def test_what_became_of_the_prediction_is_counted() -> None:
    """OpenAI's two counts; other sources count nothing there."""
    row = _row([1, 2, 3], (), _PREDICTION)
    drafts = _drafts(row)
    drafts.judge("prediction", 7, 5)
    drafts.judge("prediction", 3, 0)
    drafts.judge("short_match", 7, 7)
    drafts.judge("grammar", 7, 7)
    assert (drafts.accepted_prediction, drafts.rejected_prediction) == (5, 5)


def test_a_resumed_answer_goes_on_in_its_prediction() -> None:
    """Tokens from another engine count as the answer's."""
    submit = msgspec.structs.replace(
        request(1, [1, 2, 3, *_PREDICTION[:10]], 4000), done_tokens=10, prediction=tuple(_PREDICTION)
    )
    row = Sequence.of(submit)
    found = _candidates(RowDrafts.of(row, dict.fromkeys(SOURCES, 0.5)), row)
    assert found["prediction"] == tuple(_PREDICTION[10 : 10 + _COUNT])
    assert row.tokens[:3] == array("I", [1, 2, 3])
