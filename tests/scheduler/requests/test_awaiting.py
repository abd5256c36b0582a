"""Requests whose engine died: what they keep, and how they go on or end."""

from __future__ import annotations

import msgspec
import pytest

from scheduler.errors import LinkError
from scheduler.events import Finished, FinishReason, TextDelta, Usage
from scheduler.requests.lifecycle import State
from scheduler.shared.messages import (
    Submit,
)
from scheduler.shared.token_ids import compact
from tests.fakes.byte_tokenizer import EOS
from tests.scheduler.requests.board import Board, letters, step
from tests.scheduler.requests.records import events_of, finals_of, make_record, text_of


def test_a_lost_engine_leaves_unfinished_requests_awaiting_and_drops_the_others() -> None:
    """No reader gets an event; requests that had ended already, or left, are gone."""
    board = Board()
    waiting, decoding, stopped, left = (
        board.submit(make_record(number, stop=("x",))) for number in (1, 2, 3, 4)
    )
    board.route(step(tokens=[(2, ord("a")), (3, ord("x"))]))
    left.abandon()
    board.cancel(left)
    board.lose_all()
    board.lose_all()
    assert [waiting.state, decoding.state] == [State.AWAITING_ENGINE] * 2
    assert board.awaiting == [waiting, decoding]
    assert len(board.on_board) == 0
    assert finals_of(events_of(stopped)) == [Finished(FinishReason.STOP, Usage(3, 0, 1), "x")]
    assert events_of(left) == []
    assert [record.outcome for record in board.left] == ["stop", "cancelled"]


def test_a_resumed_request_goes_on_behind_its_output() -> None:
    """The next engine gets prompt and answer and how much of them is answer; the reader gets the rest, and
    no event of a second prefill."""
    board = Board()
    record = board.submit(make_record(prompt=[7, 8, 9], max_tokens=8))
    for output in letters(1, "abc"):
        board.route(output)
    board.lose_all()
    board.now = 3.0
    board.multiplexer.take(record)
    [first, again] = board.sent
    assert isinstance(first, Submit)
    assert again == msgspec.structs.replace(first, prompt=compact([7, 8, 9, *b"abc"]), done_tokens=3)
    board.route(step(prefills=[(1, 6, 6)]))
    board.route(step(tokens=[(1, ord("d"))]))
    board.route(step(tokens=[(1, ord("e"))], retired=[(1, "length")]))
    events = events_of(record)
    assert [type(event) for event in events] == [TextDelta, Finished]
    assert text_of(events) == "abcde"
    assert finals_of(events) == [Finished(FinishReason.LENGTH, Usage(3, 0, 5))]
    assert board.sample("penstock_resumed_requests_total") == 1
    assert board.sample("penstock_resume_seconds_sum") == 3.0


@pytest.mark.parametrize(("last", "reason"), [(EOS, FinishReason.STOP), (ord("b"), FinishReason.LENGTH)])
def test_an_answer_that_lacked_only_its_retired_is_complete(last: int, reason: FinishReason) -> None:
    """The engine died within the frame that ended it: there is nothing to resume."""
    board = Board()
    record = board.submit(make_record(max_tokens=2))
    board.route(step(tokens=[(1, ord("a"))]))
    with pytest.raises(LinkError):
        board.route(
            step(tokens=[(1, last)], retired=[(99, "stop"), (1, "stop" if last == EOS else "length")])
        )
    board.lose_all()
    [final] = finals_of(events_of(record))
    assert isinstance(final, Finished)
    assert final.reason is reason
    assert board.left == [record]


def test_what_a_dead_engine_held_is_held_no_more() -> None:
    """Its answer is complete, and says so of what it asked to hold."""
    board = Board()
    record = make_record(max_tokens=1)
    record.submit = msgspec.structs.replace(record.submit, holds=((1, 60.0),))
    board.submit(record)
    board.route(step(tokens=[(1, ord("a"))]))
    board.lose_all()
    [final] = finals_of(events_of(record))
    assert isinstance(final, Finished)
    assert final.hold_refusal == "the engine died"
