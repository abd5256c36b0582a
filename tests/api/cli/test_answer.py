"""From a streamed body to what a terminal shows: each event, cut anywhere, and the figures."""

from __future__ import annotations

import json
import signal
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from api.cli.answer import Answer, ReceivedCall, ReceivedUsage
from api.cli.chat.conversation import NOT_RUN, Conversation, read_tools

USAGE = {
    "prompt_tokens": 1200,
    "completion_tokens": 21,
    "prompt_tokens_details": {"cached_tokens": 1100},
    "completion_tokens_details": {"reasoning_tokens": 7},
}


CUT = "cut: the answer has as many tokens as allowed (/set max_tokens N allows more)"


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


def fed(*lines: str, stopped_by: int | None = None) -> Answer:
    """Return an answer that was sent at 10, of lines that came a second apart."""
    answer = Answer(10.0, stopped_by=stopped_by)
    for second, line in enumerate(lines, 11):
        answer.feed(line.encode(), float(second))
    return answer


def came(answer: Answer) -> tuple[object, ...]:
    """Return what has come, without when."""
    texts = "".join(answer.text), "".join(answer.thinking), answer.waiting
    return (
        *texts,
        answer.calls,
        answer.usage,
        answer.ended,
        answer.failure,
        answer.is_over,
        len(answer.stamps),
    )


@given(st.lists(st.integers(0, len(BODY.encode())), max_size=30))
def test_an_answer_does_not_depend_on_where_the_body_is_cut(cuts: list[int]) -> None:
    data, answer = BODY.encode(), Answer(0.0)
    for start, end in pairwise([0, *sorted(cuts), len(data)]):
        answer.feed(data[start:end], 1.0)
    assert came(answer) == (
        "Grüße 👋",
        "hm… ",
        "queued 3",
        {0: ReceivedCall("c1", "look", '{"a":1}')},
        ReceivedUsage(1200, 21, 1100),
        "tool_calls",
        None,
        True,
        5,
    )


@pytest.mark.parametrize(
    ("line", "name", "value"),
    [
        (chunk({"reasoning": "vLLM's name"}), "thinking", ["vLLM's name"]),
        (chunk({"reasoning": "twice", "reasoning_content": "twice"}), "thinking", ["twice"]),
        (chunk({"content": None, "tool_calls": None}), "stamps", []),
        (chunk(call(function=None)), "calls", {0: ReceivedCall()}),
        ("data: " + json.dumps({"error": {"message": "no engine"}}) + "\n", "failure", "no engine"),
        ("data: " + json.dumps({"error": "bad"}) + "\n", "failure", "bad"),
        ("data: {\n", "failure", "an event that is not JSON: {"),
        ("data: 3\n", "failure", None),
        ("event: ping\n", "is_over", False),
        (
            "data: " + json.dumps({"choices": "x", "usage": {"prompt_tokens": "many"}}) + "\n",
            "usage",
            ReceivedUsage(0, 0, None),
        ),
    ],
)
def test_other_servers_and_broken_ones(line: str, name: str, value: object) -> None:
    assert getattr(fed(line), name) == value


@given(st.binary(max_size=300))
def test_no_bytes_break_an_answer(data: bytes) -> None:
    answer = Answer(0.0)
    answer.feed(b"data: " + data + b"\n", 1.0)
    assert answer.figures()


def test_figures_are_the_servers_counts_and_the_clients_times() -> None:
    answer = fed(*BODY.splitlines(keepends=True)[::2])
    assert answer.is_whole
    assert answer.figures() == "21 tokens · 5.0 tokens/s · first after 3.0 s · prompt 1,200, 91% cached"
    assert answer.remark() is None


def test_without_usage_tokens_are_an_estimate() -> None:
    answer = Answer(0.0)
    answer.feed(chunk({"content": "a"}).encode(), 0.5)
    assert answer.figures() == "about 1 token · first after 500 ms"


A, HALF_CALL = (
    chunk({"content": "a"}),
    chunk(call(index=0, id="c", function={"name": "look", "arguments": '{"a'})),
)
REPEATS = chunk({}, "length").replace('"length"', '"length", "penstock": {"repetition": true}')
GONE = "data: " + json.dumps({"error": {"message": "gone"}}) + "\n"


@pytest.mark.parametrize(
    ("lines", "stopped", "remark", "kept"),
    [
        ([A, chunk({}, "stop")], False, None, "a"),
        ([A, chunk({}, "length")], False, CUT, "a"),
        ([A, chunk({}, "content_filter")], False, "ended: content_filter", "a"),
        ([A, REPEATS], False, "ended: the answer repeated itself", "a"),
        ([A], True, "stopped", "a"),
        ([A, GONE], False, "gone", "a"),
        ([chunk({"reasoning_content": "a"}), GONE, GONE.replace("gone", "later")], False, "gone", None),
        ([HALF_CALL], True, "stopped", None),
        ([A, HALF_CALL], True, "stopped", "a"),
    ],
)
def test_an_answer_that_did_not_end_by_itself(
    lines: list[str], stopped: bool, remark: str | None, kept: str | None
) -> None:
    """Its text is kept; a call that was cut is not, for its arguments are no JSON. Without either, its
    question is taken back."""
    answer = fed(*lines, stopped_by=signal.SIGINT if stopped else None)
    assert answer.remark() == remark
    talk = Conversation("tiny")
    talk.ask("hi")
    talk.keep(answer)
    assert [message.get("content") for message in talk.messages] == ([] if kept is None else ["hi", kept])
    assert not any("tool_calls" in message for message in talk.messages)


def test_a_whole_call_is_kept_with_a_result_that_says_that_it_was_not_run() -> None:
    talk = Conversation("tiny", system="Be brief.", settings={"seed": 1})
    talk.ask("hi")
    talk.keep(fed(BODY))
    body = talk.ask("more")
    assert [message["role"] for message in body["messages"]] == [
        "system",
        "user",
        "assistant",
        "tool",
        "user",
    ]
    assert body["messages"][2]["tool_calls"][0]["function"] == {"name": "look", "arguments": '{"a":1}'}
    assert body["messages"][3] == {"role": "tool", "tool_call_id": "c1", "content": NOT_RUN}
    assert (body["seed"], body["stream"], "tools" in body) == (1, True, False)


@pytest.mark.parametrize("text", ["{}", "[1]", '[{"function": {}}]', "x", "[" * 99_999])
def test_a_file_that_holds_no_tools_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="is no JSON list of tools"):
        read_tools(text)
