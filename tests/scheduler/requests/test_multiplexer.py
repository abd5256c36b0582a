"""The engine's output reaches the request it is for, as text, times and errors."""

from __future__ import annotations

import pytest

from scheduler.errors import GrammarLimit, InvalidRequest, LinkError, RequestFailed
from scheduler.events import Failed, Finished, FinishReason, Prefilling, TextDelta, ToolCallStarted, Usage
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


def test_progress_text_and_end_arrive_in_the_request_that_they_name() -> None:
    """Two requests in one step, each with its own. The step names those that it moved and that go on."""
    board = Board()
    one, two = board.submit(make_record(1)), board.submit(make_record(2))
    assert board.route(step(prefills=[(2, 3, 3), (1, 2, 3)])) == [one, two]
    assert one.mailbox.take_nowait() == Prefilling(2, 3)
    board.route(step(tokens=[(2, ord("b"))], prefills=[(1, 3, 3)]))
    moved = board.route(step(tokens=[(1, ord("a")), (2, ord("c"))], retired=[(2, "length")]))
    assert events_of(two) == [TextDelta("bc"), Finished(FinishReason.LENGTH, Usage(3, 0, 2))]
    assert events_of(one) == [TextDelta("a")]
    assert (board.left, board.on_board, moved) == ([two], [one], [one])


def test_only_the_last_of_a_steps_tokens_is_the_stop_token() -> None:
    """The accepted ones before it are text, whatever stands between them in the step. Its usage
    includes it, as vLLM's does."""
    board = Board()
    one, two = board.submit(make_record(1)), board.submit(make_record(2))
    tokens = [(1, ord("a")), (2, ord("x")), (1, ord("b")), (2, EOS), (1, ord("c"))]
    board.route(step(tokens=tokens, retired=[(2, "stop")]))
    assert events_of(one) == [TextDelta("abc")]
    assert events_of(two) == [TextDelta("x"), Finished(FinishReason.STOP, Usage(3, 0, 2))]


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
    [lost] = board.awaiting
    board.multiplexer.take(lost)
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


def test_a_prefill_after_the_first_token_is_an_error_of_the_link() -> None:
    """No working engine says so: the supervisor then replaces it, and the service goes on."""
    board = Board()
    board.submit(make_record(1))
    board.route(step(tokens=[(1, 65)]))
    with pytest.raises(LinkError):
        board.route(step(prefills=[(1, 1, 2)]))


def test_a_call_is_noted_by_its_name() -> None:
    """As it is put into the mailbox."""
    record = make_record(1, session="agent")
    record.put(ToolCallStarted(0, "id", "search"))
    assert record.called == {"search"}
    assert record.mailbox.take_nowait() == ToolCallStarted(0, "id", "search")
