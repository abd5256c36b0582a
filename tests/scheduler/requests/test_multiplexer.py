"""The engine's output reaches the request it is for, as text, times and errors."""

from __future__ import annotations

import msgspec
import pytest

from scheduler.errors import GrammarLimit, InvalidRequest, LinkError, PromptTooLong, RequestFailed
from scheduler.events import Failed, Finished, FinishReason
from scheduler.shared.messages import (
    Cancel,
    Counters,
    LogprobsOut,
    Retired,
    RetireReason,
    StepOutput,
    TokenOut,
)
from tests.fakes.byte_tokenizer import EOS
from tests.scheduler.requests.board import Board, step
from tests.scheduler.requests.records import events_of, finals_of, make_record, text_of


def test_waits_are_observed_for_readers_only() -> None:
    """Time to first token from acceptance, then the gaps: of sixteen tokens of a step one. Those behind a
    stop string count for no latency."""
    board = Board()
    record = board.submit(make_record(1, stop=("END",)))
    for board.now, text in ((1.0, "a" * 16), (3.0, "a" * 16), (3.5, "END and on"), (9.0, "late")):
        board.route(step(tokens=[(1, ord(letter)) for letter in text]))
    assert (record.output_tokens, board.sent[1:]) == (35, [Cancel(1)])
    assert board.sample("penstock_time_to_first_token_seconds_sum", start="cold") == 1.0
    assert board.sample("penstock_inter_token_seconds_count") == 2
    assert board.sample("penstock_inter_token_seconds_sum") == 2.5
    assert board.sample("penstock_late_tokens_total") == len(" and onlate")


def test_one_step_makes_no_request_trusted() -> None:
    """Whatever it wrote; nor do the steps of an engine that has died."""
    board = Board()
    record = board.submit(make_record(1, max_tokens=1000))
    for _ in range(4):
        assert not record.trusted
        board.route(step(tokens=[(1, ord("a"))] * 16))
    assert record.trusted
    board.lose_all()
    board.multiplexer.take(record)
    board.route(step(tokens=[(1, ord("a"))] * 16))
    assert not record.trusted


@pytest.mark.parametrize("part", ["read", "end", "end_token"])
def test_a_failure_in_one_requests_text_fails_that_request_alone(
    part: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In a token, at the end, such as in a parser of tool calls, and in the text of a stop token: an engine
    that ended of it would end again, with each that resumes the answer."""
    board = Board()
    broken, other = board.submit(make_record(1, stop=("END",))), board.submit(make_record(2))
    monkeypatch.setattr(broken.pipeline, part, lambda *_: 1 // 0)
    tokens = [EOS] if part == "end_token" else [*b"END"]
    for token in tokens:
        out = [TokenOut(1, token, LogprobsOut(-1.0)), TokenOut(2, ord("x"))]
        ends = [Retired(1, "stop")] if token == EOS else []
        board.route(StepOutput(out, [], ends, Counters()))
    if part != "end_token":
        assert board.sent[-1] == Cancel(1)
        board.route(step(retired=[(1, "cancelled")]))
    [failed] = finals_of(events_of(broken))
    assert isinstance(failed, Failed)
    assert isinstance(failed.error, RequestFailed)
    assert (board.left, board.on_board) == ([broken], [other])
    assert text_of(events_of(other)) == "x" * len(tokens)


@pytest.mark.parametrize(
    ("reason", "kind", "outcome"),
    [
        ("refused", InvalidRequest, "invalid"),
        ("grammar", GrammarLimit, "invalid"),
        ("failed", RequestFailed, "error"),
        ("cancelled", RequestFailed, "error"),
    ],
)
def test_an_end_that_is_no_answer_is_an_error_of_the_right_kind(
    reason: RetireReason, kind: type[Exception], outcome: str
) -> None:
    """The class depends on who is at fault; the engine's message reaches the client."""
    board = Board()
    record = board.submit(make_record(1))
    board.route(step(retired=[(1, reason)], detail="because of this"))
    [failed] = events_of(record)
    assert isinstance(failed, Failed)
    assert type(failed.error) is kind
    said = "tools: because of this" if reason == "grammar" else "because of this"
    assert reason == "cancelled" or failed.error.message == said
    assert record.outcome == outcome


def test_a_prompt_that_an_engine_has_no_room_for_is_too_long() -> None:
    """Its memory may be less than that of the engine by which the server judged."""
    board = Board()
    record = board.submit(make_record(1))
    board.route(StepOutput([], [], [Retired(1, "refused", "no room", most_tokens=5)], Counters()))
    [failed] = events_of(record)
    assert isinstance(failed, Failed)
    assert isinstance(failed.error, PromptTooLong)
    assert failed.error.context_tokens == 5


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
