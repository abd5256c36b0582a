"""A request's time line: spans that follow each other without a gap, whatever happens and however often."""

from __future__ import annotations

from itertools import pairwise

from hypothesis import given, settings
from hypothesis import strategies as st

from scheduler.requests.lifecycle import State
from scheduler.requests.time_line import MOST_SPANS, TimeLine, phases
from scheduler.shared.messages import Counters, PrefillOut, StepOutput, WaitOut
from tests.examples import examples
from tests.scheduler.requests.board import Board, step
from tests.scheduler.requests.records import make_record


def told(line: TimeLine, now: float) -> list[tuple[str, float, float]]:
    return [
        (span.phase + (f" for {span.waits_for}" if span.waits_for else ""), span.start, span.end)
        for span in phases(line.spans(now))
    ]


def test_it_says_what_it_waited_for_in_the_engine() -> None:
    """From when it was submitted, and since when each reason held."""
    line = TimeLine(0.0)
    line.enter(State.SUBMITTED, 1.0, engine="0")
    line.enter(State.WAITING, 1.5, "slot")
    line.enter(State.WAITING, 4.0, "prefix")
    assert (line.phase, line.waits_for) == (State.WAITING, "prefix")
    line.enter(State.PREFILLING, 6.0)
    line.chunk(7.0, 10)
    line.enter(State.DECODING, 7.0)
    assert told(line, 8.0) == [
        ("queue", 0.0, 1.0),
        ("waiting for slot", 1.0, 4.0),
        ("waiting for prefix", 4.0, 6.0),
        ("prefill", 6.0, 7.0),
        ("decode", 7.0, 8.0),
    ]


EVENTS = st.lists(
    st.tuples(
        st.sampled_from(["submitted", "slot", "prefix", "preempted", "has_slot", "chunk", "decode", "lost"]),
        st.floats(-1.0, 3.0),
    ),
    max_size=300,
)


@settings(deadline=None, max_examples=examples(60))
@given(EVENTS)
def test_whatever_happens_it_is_whole_and_bounded(events: list[tuple[str, float]]) -> None:
    """From arrival to now without a gap, in at most MOST_SPANS, no chunk lost: also where the engine's ages
    would overlap."""
    line, now, chunks = TimeLine(5.0), 5.0, 0
    for number, (event, seconds) in enumerate(events):
        now = max(now, now + seconds)
        at = min(now, now + seconds)
        match event:
            case "submitted":
                line.enter(State.SUBMITTED, now, engine="0")
            case "has_slot":
                line.enter(State.PREFILLING, at)
            case "chunk":
                chunks += 1
                line.chunk(now, number)
            case "decode":
                line.enter(State.DECODING, now)
            case "lost":
                line.enter(State.AWAITING_ENGINE, now)
            case reason:
                line.enter(State.WAITING, at, reason)
        spans = line.spans(now)
        assert len(spans) <= MOST_SPANS
        assert (spans[0].start, spans[-1].end) == (5.0, now)
        assert spans[0].phase == State.QUEUED
        assert all(one.end == other.start for one, other in pairwise(spans))
        assert sum(span.chunks for span in spans) == chunks


def test_a_prompt_of_a_thousand_chunks_is_shown_in_coarser_ones() -> None:
    """All of about the same size."""
    line = TimeLine(0.0)
    line.enter(State.SUBMITTED, 0.0, engine="0")
    line.enter(State.PREFILLING, 0.0)
    for number in range(1, 1001):
        line.chunk(float(number), 512 * number)
    found = [span for span in line.spans(1000.0) if span.chunks]
    assert len(found) > MOST_SPANS / 4
    assert sum(span.tokens for span in found) == 512_000
    assert {span.phase for span in found} == {State.PREFILLING}


def test_the_multiplexer_writes_it_from_what_the_engine_sends() -> None:
    """With the ages that the engine gives; the queue's end is the submission."""
    board = Board(now=2.0)
    record = board.submit(make_record(1))
    board.now = 5.0
    board.route(StepOutput([], [], [], Counters(), waits=[WaitOut(1, "prefix", 2.5)]))
    assert record.waits_for == "prefix"
    board.now = 9.0
    board.route(StepOutput([], [PrefillOut(1, 3, 3, 1)], [], Counters(), waits=[WaitOut(1, "nothing", 1.0)]))
    assert record.waits_for == ""
    board.route(step(tokens=[(1, 65)]))
    board.now = 10.0
    board.route(StepOutput([], [], [], Counters(), waits=[WaitOut(1, "preempted", 0.5)]))
    assert told(record.time_line, 10.0) == [
        ("queue", 0.0, 2.0),
        ("waiting for prefix", 2.0, 8.0),
        ("prefill", 8.0, 9.0),
        ("decode", 9.0, 9.5),
        ("preempted", 9.5, 10.0),
    ]
