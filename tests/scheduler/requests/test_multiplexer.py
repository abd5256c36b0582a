"""The engine's output reaches the request it is for, and no other."""

from __future__ import annotations

import pytest

from scheduler.errors import (
    GrammarLimit,
    InvalidRequest,
    LinkError,
    RequestFailed,
)
from scheduler.events import Failed, Finished, FinishReason, Prefilling, TextDelta, ToolCallStarted, Usage
from scheduler.requests.lifecycle import State
from scheduler.requests.time_line import TimeLine
from scheduler.shared.messages import (
    Cancel,
    Counters,
    LogprobsOut,
    Retired,
    RetireReason,
    StepOutput,
    Submit,
    TokenOut,
    WaitOut,
)
from tests.fakes.byte_tokenizer import EOS
from tests.scheduler.requests.board import Board, letters, step
from tests.scheduler.requests.records import events_of, finals_of, make_record, text_of


class Broken:
    """A detokenizer that fails when it is fed, or when it is finished."""

    begun = True

    def __init__(self, at: str) -> None:
        self._at = at

    def feed(self, token_id: int) -> str:
        if self._at == "feed":
            raise ValueError("no such token")
        return "x"

    def finish(self) -> str:
        raise ValueError("nothing to finish")


def test_submitting_sends_the_request_and_remembers_when() -> None:
    """The message has what the engine needs; the wait in the queue is observed."""
    board = Board(now=2.5)
    record = board.submit(make_record(7, prompt=[4, 5]))
    assert len(board.sent) == len(board.on_board) == 1
    sent = board.sent[0]
    assert isinstance(sent, Submit)
    assert sent.prompt.tolist() == [4, 5]
    assert (sent.request_id, sent.max_tokens, sent.stop_token_ids) == (7, 8, (EOS,))
    assert sent.sampling.temperature == 0.0
    assert record.dispatched_at == 2.5
    assert board.sample("penstock_queue_seconds_sum") == 2.5


def test_progress_text_and_end_arrive_in_the_request_that_they_name() -> None:
    """Two requests in one step, each with its own."""
    board = Board()
    one, two = board.submit(make_record(1)), board.submit(make_record(2))
    board.route(step(prefills=[(1, 2, 3), (2, 3, 3)]))
    assert one.mailbox.take_nowait() == Prefilling(2, 3)
    board.route(step(tokens=[(2, ord("b"))], prefills=[(1, 3, 3)]))
    board.route(step(tokens=[(1, ord("a")), (2, ord("c"))], retired=[(2, "length")]))
    assert events_of(two) == [TextDelta("bc"), Finished(FinishReason.LENGTH, Usage(3, 0, 2))]
    assert events_of(one) == [TextDelta("a")]
    assert board.left == [two]
    assert board.on_board == [one]


def test_a_step_names_the_requests_that_it_moved_and_that_go_on() -> None:
    """Neither those that wait beside them, nor who ends with it, nor who has left."""
    board = Board()
    one, two, left, _ = (board.submit(make_record(number)) for number in (1, 2, 3, 4))
    assert board.route(step(prefills=[(2, 2, 3), (1, 2, 3), (3, 2, 3)])) == [one, two, left]
    board.cancel(left)
    moved = board.route(step(tokens=[(1, 65), (2, 65), (3, 65)], retired=[(2, "length")]))
    assert moved == [one]


def test_a_stop_token_is_counted_but_is_no_text() -> None:
    """The usage includes it, as vLLM's does; held back text comes out before the end."""
    board = Board()
    record = board.submit(make_record(1, stop=("ax",)))
    board.route(step(tokens=[(1, ord("a"))]))
    board.route(step(tokens=[(1, ord("x"))], retired=[(1, "stop")]))
    assert events_of(record) == [TextDelta("a"), Finished(FinishReason.STOP, Usage(3, 0, 2))]
    assert board.sent[1:] == []


def test_only_the_last_of_a_steps_tokens_is_the_stop_token() -> None:
    """The accepted ones before it are text, whatever stands between them in the step."""
    board = Board()
    one, two = board.submit(make_record(1)), board.submit(make_record(2))
    tokens = [(1, ord("a")), (2, ord("x")), (1, ord("b")), (2, EOS), (1, ord("c"))]
    board.route(step(tokens=tokens, retired=[(2, "stop")]))
    assert events_of(one) == [TextDelta("abc")]
    assert events_of(two) == [TextDelta("x"), Finished(FinishReason.STOP, Usage(3, 0, 2))]


def test_a_stop_string_within_a_step_ends_the_answer_where_it_stands() -> None:
    """Tokens behind it are none of the answer, though the engine has written them, and retired the row."""
    board = Board()
    record = board.submit(make_record(1, stop=("END",)))
    tokens = [(1, byte) for byte in b"an END and on"]
    board.route(step(tokens=tokens, retired=[(1, "length")]))
    assert events_of(record) == [TextDelta("an "), Finished(FinishReason.STOP, Usage(3, 0, 6), "END")]
    assert record.emitted.tolist() == list(b"an END")
    assert board.sample("penstock_late_tokens_total") == len(" and on")


def test_a_steps_tokens_come_without_gaps() -> None:
    """Sixteen tokens make one inter-token gap, that since the step before."""
    board = Board()
    record = board.submit(make_record(1))
    for board.now in (1.0, 3.0, 3.5):
        board.route(step(tokens=[(1, ord("a"))] * 16))
    assert record.output_tokens == 48
    assert board.sample("penstock_time_to_first_token_seconds_sum", start="cold") == 1.0
    assert board.sample("penstock_inter_token_seconds_count") == 2
    assert board.sample("penstock_inter_token_seconds_sum") == 2.5


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


@pytest.mark.parametrize(("prediction", "predicted"), [("ab", (5, 2)), ("", (5, 2)), (None, None)])
def test_the_usage_has_what_became_of_a_prediction(
    prediction: str | None, predicted: tuple[int, int] | None
) -> None:
    """Where there was one."""
    board = Board()
    record = board.submit(make_record(1, prediction=prediction))
    end = Retired(1, "length", predicted=(5, 2))
    board.route(StepOutput([TokenOut(1, ord("a"))], [], [end], Counters()))
    assert events_of(record)[-1] == Finished(FinishReason.LENGTH, Usage(3, 0, 1, predicted=predicted))


def test_what_became_of_a_prediction_is_unknown_where_no_engine_said_it() -> None:
    """The answer's own text ended it, or the engine died when it was complete: not 0, but nothing."""
    board = Board()
    stopped = board.submit(make_record(1, stop=("b",), prediction="ab"))
    board.route(step(tokens=[(1, ord("a")), (1, ord("b"))]))
    board.route(StepOutput([], [], [Retired(1, "cancelled", predicted=(1, 0))], Counters()))
    assert events_of(stopped)[-1] == Finished(FinishReason.STOP, Usage(3, 0, 2), "b")
    orphan = board.submit(make_record(2, max_tokens=1, prediction="ab"))
    board.route(step(tokens=[(2, ord("a"))]))
    board.lose_all()
    assert events_of(orphan)[-1] == Finished(FinishReason.LENGTH, Usage(3, 0, 1))


def test_the_last_token_before_the_length_limit_is_text() -> None:
    """Only a stop token's text is left out."""
    board = Board()
    record = board.submit(make_record(1))
    board.route(step(tokens=[(1, ord("z"))], retired=[(1, "length")]))
    assert events_of(record) == [TextDelta("z"), Finished(FinishReason.LENGTH, Usage(3, 0, 1))]


def test_a_stop_string_ends_the_answer_at_once_and_cancels_the_row() -> None:
    """The reader need not wait for the engine; tokens in flight are dropped and counted."""
    board = Board()
    record = board.submit(make_record(1, stop=("END",)))
    for output in letters(1, "the END"):
        board.route(output)
    assert record.state is State.CANCELLING
    assert board.sent[1:] == [Cancel(1)]
    for output in letters(1, " is late"):
        board.route(output)
    board.route(step(retired=[(1, "cancelled")]))
    assert events_of(record) == [TextDelta("the "), Finished(FinishReason.STOP, Usage(3, 0, 7), "END")]
    assert board.sample("penstock_late_tokens_total") == len(" is late")
    assert board.sent[1:] == [Cancel(1)]
    assert (board.left, len(board.on_board), record.outcome) == ([record], 0, "stop")


def test_a_stop_string_in_the_very_last_token_is_a_stop() -> None:
    """Also if the engine retires the row in the same step for its length."""
    board = Board()
    record = board.submit(make_record(1, stop=("b",)))
    board.route(step(tokens=[(1, ord("a"))]))
    board.route(step(tokens=[(1, ord("b"))], retired=[(1, "length")]))
    assert events_of(record) == [TextDelta("a"), Finished(FinishReason.STOP, Usage(3, 0, 2), "b")]
    assert record.state is State.RETIRED


def test_a_stop_string_in_the_flush_is_a_stop() -> None:
    """Held back text of a cut character may complete it."""
    board = Board()
    record = board.submit(make_record(1, stop=("a\ufffd",)))
    board.route(step(tokens=[(1, ord("a"))]))
    board.route(step(tokens=[(1, 0xF0)], retired=[(1, "length")]))
    assert events_of(record) == [Finished(FinishReason.STOP, Usage(3, 0, 2), "a\ufffd")]


@pytest.mark.parametrize("at", ["feed", "finish"])
def test_a_failure_in_one_requests_text_fails_that_request_alone(at: str) -> None:
    """In a token or at the end: one Failed, its neighbour in the same step goes on."""
    board = Board()
    broken, healthy = board.submit(make_record(1, detokenizer=Broken(at))), board.submit(make_record(2))
    board.route(step(tokens=[(1, 5), (2, ord("a"))]))
    board.route(step(tokens=[(1, 5), (2, ord("b"))], retired=[(1, "length"), (2, "length")]))
    [failed] = finals_of(events_of(broken))
    assert isinstance(failed, Failed)
    assert isinstance(failed.error, RequestFailed)
    assert broken.outcome == "error"
    assert events_of(healthy) == [TextDelta("ab"), Finished(FinishReason.LENGTH, Usage(3, 0, 2))]
    assert board.left == [broken, healthy]
    assert board.sent[2:] == ([Cancel(1)] if at == "feed" else [])


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


def test_a_cancelled_request_hears_nothing_more_and_is_forgotten_at_retired() -> None:
    """Its id stays in the table until the engine retires it."""
    board = Board()
    record = board.submit(make_record(1))
    record.abandon()
    board.cancel(record)
    board.cancel(record)
    board.route(step(prefills=[(1, 3, 3)]))
    board.route(step(tokens=[(1, ord("a"))]))
    assert (board.sent[1:], len(board.on_board), board.left) == ([Cancel(1)], 1, [])
    board.route(step(retired=[(1, "cancelled")]))
    assert (len(board.on_board), board.left, record.outcome) == (0, [record], "cancelled")
    assert events_of(record) == []
    board.cancel(record)
    assert board.sent[1:] == [Cancel(1)]


def test_waits_between_tokens_are_observed_for_readers_only() -> None:
    """Time to first token from acceptance, then the gaps; late tokens count for no latency."""
    board = Board()
    record = board.submit(make_record(1, arrived_at=0.0))
    for now, token in [(3.0, "a"), (3.5, "b"), (5.5, "c")]:
        board.now = now
        board.route(step(tokens=[(1, ord(token))]))
    board.cancel(record)
    board.route(step(tokens=[(1, ord("d"))]))
    assert board.sample("penstock_time_to_first_token_seconds_sum", start="cold") == 3.0
    assert board.sample("penstock_inter_token_seconds_sum") == 2.5
    assert board.sample("penstock_inter_token_seconds_count") == 2


@pytest.mark.parametrize(
    "impossible",
    [
        step(tokens=[(99, 5)]),
        step(prefills=[(99, 1, 2)]),
        step(retired=[(99, "length")]),
        step(tokens=[(1, 65)], prefills=[]),
    ],
)
def test_what_a_working_engine_cannot_say_is_an_error_of_the_link(impossible: StepOutput) -> None:
    """An id that it does not have, a prefill after the first token: the supervisor then replaces the engine,
    and the service goes on."""
    board = Board()
    board.submit(make_record(1))
    if impossible.tokens and impossible.tokens[0].request_id == 1:
        board.route(impossible)
        impossible = step(prefills=[(1, 1, 2)])
    with pytest.raises(LinkError):
        board.route(impossible)


@pytest.mark.parametrize(("part", "tokens"), [("end", [*b"END"]), ("end_token", [EOS])])
def test_a_bug_at_the_end_of_an_answer_ends_that_answer_alone(
    part: str, tokens: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """After a stop string, such as in a parser of tool calls, and in the text of a stop token: an engine that
    ended of it would end again, with each that resumes the answer."""
    board = Board()
    broken, other = board.submit(make_record(1, stop=("END",))), board.submit(make_record(2))
    monkeypatch.setattr(broken.pipeline, part, lambda *_: 1 // 0)
    for token in tokens:
        out = [TokenOut(1, token, LogprobsOut(-1.0)), TokenOut(2, ord("x"))]
        ends = [Retired(1, "stop")] if token == EOS else []
        board.route(StepOutput(out, [], ends, Counters()))
    if part == "end":
        assert board.sent[-1] == Cancel(1)
        board.route(step(retired=[(1, "cancelled")]))
    [failed] = events_of(broken)
    assert isinstance(failed, Failed)
    assert isinstance(failed.error, RequestFailed)
    assert (board.left, board.on_board) == ([broken], [other])
    assert text_of(events_of(other)) == "x" * len(tokens)


@pytest.mark.parametrize("part", ["_end", "_span"])
def test_a_bug_in_the_time_line_ends_no_stream(part: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Submitted, waiting, prefilled, decoded, and resumed after an engine's death."""
    monkeypatch.setattr(TimeLine, part, lambda *_, **__: 1 // 0)
    board = Board()
    one, two = board.submit(make_record(1)), board.submit(make_record(2))
    for wait in (WaitOut(1, "slot"), WaitOut(1, "nothing"), WaitOut(1, "preempted")):
        board.route(StepOutput([], [], [], Counters(), waits=[wait]))
    board.route(step(tokens=[(2, ord("b"))], prefills=[(1, 3, 3)]))
    board.route(step(tokens=[(1, ord("a")), (2, ord("c"))], retired=[(2, "length")]))
    board.lose_all()
    [lost] = board.awaiting
    board.multiplexer.take(lost)
    board.route(step(tokens=[(1, ord("d"))], retired=[(1, "length")]))
    assert events_of(one) == [TextDelta("ad"), Finished(FinishReason.LENGTH, Usage(3, 0, 2))]
    assert events_of(two) == [TextDelta("bc"), Finished(FinishReason.LENGTH, Usage(3, 0, 2))]
    assert board.left == [two, one]


def test_a_call_is_noted_by_its_name() -> None:
    """As it is put into the mailbox."""
    record = make_record(1, session="agent")
    record.put(ToolCallStarted(0, "id", "search"))
    assert record.called == {"search"}
    assert record.mailbox.take_nowait() == ToolCallStarted(0, "id", "search")
