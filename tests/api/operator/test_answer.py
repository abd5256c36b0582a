"""From a streamed body to what a terminal shows: each event, cut anywhere, and the figures."""

from __future__ import annotations

import json
import signal
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from api.operator.answer import (
    Answer,
    Call,
    Called,
    Counted,
    Done,
    Ended,
    Event,
    EventReader,
    Failed,
    Reply,
    Said,
    Thought,
    Waiting,
)

USAGE = {
    "prompt_tokens": 1200,
    "completion_tokens": 21,
    "prompt_tokens_details": {"cached_tokens": 1100},
    "completion_tokens_details": {"reasoning_tokens": 7},
}


CUT = "cut: the answer has as many tokens as allowed (/set max_tokens)"


def chunk(delta: Any = None, reason: str | None = None, **fields: Any) -> str:
    choices = [{"index": 0, "delta": delta or {}, "finish_reason": reason}]
    return "data: " + json.dumps({"choices": choices, **fields}) + "\n\n"


def call(**fields: Any) -> dict[str, Any]:
    return {"tool_calls": [fields]}


BODY = "".join(
    [
        ": queued 3\n\n",
        chunk({"role": "assistant", "content": ""}),
        chunk({"reasoning_content": "hm… "}),
        chunk({"content": "Grüße 👋"}),
        chunk(call(index=0, id="c1", function={"name": "look", "arguments": ""})),
        chunk(call(index=0, function={"arguments": '{"a":'})),
        chunk(call(index=0, function={"arguments": "1}"})),
        chunk({}, "tool_calls"),
        "data: " + json.dumps({"choices": [], "usage": USAGE}) + "\r\n\r\n",
        "data: [DONE]\n\n",
    ]
)
EVENTS: list[Event] = [
    Waiting("queued 3"),
    Thought("hm… "),
    Said("Grüße 👋"),
    Called(0, "c1", "look", ""),
    Called(0, "", "", '{"a":'),
    Called(0, "", "", "1}"),
    Ended("tool_calls"),
    Counted(1200, 21, 1100, 7),
    Done(),
]


@given(st.lists(st.integers(0, len(BODY.encode())), max_size=30))
def test_events_do_not_depend_on_where_the_body_is_cut(cuts: list[int]) -> None:
    data, reader, found = BODY.encode(), EventReader(), list[Event]()
    places = [0, *sorted(cuts), len(data)]
    for start, end in pairwise(places):
        found += reader.feed(data[start:end])
    assert found == EVENTS


@pytest.mark.parametrize(
    ("line", "events"),
    [
        (chunk({"reasoning": "vLLM's name"}), [Thought("vLLM's name")]),
        (chunk({"content": None, "tool_calls": None}), []),
        (chunk(call(function=None)), [Called(0, "", "", "")]),
        ("data: " + json.dumps({"error": {"message": "no engine"}}) + "\n", [Failed("no engine")]),
        ("data: " + json.dumps({"error": "bad"}) + "\n", [Failed("bad")]),
        ("data: {\n", [Failed("an event that is not JSON: {")]),
        ("data: 3\n", []),
        ("event: ping\n", []),
        (
            "data: " + json.dumps({"choices": "x", "usage": {"prompt_tokens": "many"}}) + "\n",
            [Counted(0, 0, None, None)],
        ),
    ],
)
def test_other_servers_and_broken_ones(line: str, events: list[Event]) -> None:
    assert EventReader().feed(line.encode()) == events


@given(st.binary(max_size=300))
def test_no_bytes_break_the_reader(data: bytes) -> None:
    for event in EventReader().feed(b"data: " + data + b"\n"):
        Answer(0.0).take(event, 1.0)


def test_an_answer_collects_what_comes() -> None:
    answer = Answer(10.0)
    for second, event in enumerate(EVENTS):
        answer.take(event, 11.0 + second)
    assert answer.is_whole
    assert answer.reply() == Reply("Grüße 👋", "hm… ", (Call("c1", "look", '{"a":1}'),))
    assert answer.thinking_seconds(99.0) == 1.0
    assert answer.figures() == "21 tokens · 5.0 tokens/s · first after 2.0 s · prompt 1,200, 91% cached"
    assert answer.remark() is None


def test_without_usage_tokens_are_an_estimate() -> None:
    answer = Answer(0.0)
    answer.take(Said("a"), 0.5)
    assert answer.figures() == "about 1 token · first after 500 ms"


@pytest.mark.parametrize(
    ("events", "stopped", "remark", "kept"),
    [
        ([Said("a"), Ended("stop")], False, None, Reply("a")),
        ([Said("a"), Ended("length")], False, CUT, Reply("a")),
        ([Said("a"), Ended("content_filter")], False, "ended: content_filter", Reply("a")),
        ([Said("a")], True, "stopped", Reply("a", is_whole=False)),
        ([Said("a"), Failed("gone")], False, "gone", Reply("a", is_whole=False)),
        ([Thought("a"), Failed("gone"), Failed("later")], False, "gone", None),
        ([Called(0, "c", "look", '{"a')], True, "stopped", None),
        ([Said("a"), Called(0, "c", "look", '{"a')], True, "stopped", Reply("a", is_whole=False)),
    ],
)  # fmt: skip
def test_an_answer_that_did_not_end_by_itself(
    events: list[Event], stopped: bool, remark: str | None, kept: Reply | None
) -> None:
    """Its text is kept; a call that was cut is not, for its arguments are no JSON."""
    answer = Answer(0.0, stopped_by=signal.SIGINT if stopped else None)
    for event in events:
        answer.take(event, 1.0)
    assert answer.remark() == remark
    assert answer.reply() == kept
