"""A streamed answer's events, whole ones, other servers' and broken ones."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from loadtests.answer import Answer, ReceivedUsage

USAGE = {"prompt_tokens": 1200, "completion_tokens": 21, "prompt_tokens_details": {"cached_tokens": 1100}}


def chunk(delta: Any = None, reason: str | None = None, **fields: Any) -> bytes:
    choices = [{"index": 0, "delta": delta or {}, "finish_reason": reason}]
    return json.dumps({"choices": choices, **fields}).encode()


def taken(*payloads: bytes) -> Answer:
    answer = Answer()
    for second, payload in enumerate(payloads):
        answer.take(payload, float(second))
    return answer


def test_text_thinking_and_calls_are_stamped() -> None:
    answer = taken(
        chunk({"role": "assistant", "content": ""}),
        chunk({"reasoning_content": "hm… "}),
        chunk({"content": "Grüße 👋"}),
        chunk({"tool_calls": [{"index": 0, "id": "c1", "function": {"name": "look", "arguments": ""}}]}),
        chunk({}, "tool_calls"),
        json.dumps({"choices": [], "usage": USAGE}).encode(),
        b"[DONE]",
        chunk({"content": "behind its end"}),
    )
    assert answer == Answer(
        ["Grüße 👋"], [1.0, 2.0, 3.0], ReceivedUsage(1200, 21, 1100), "tool_calls", None, True
    )


@pytest.mark.parametrize(
    ("payload", "name", "value"),
    [
        (chunk({"reasoning": "vLLM's name"}), "stamps", [0.0]),
        (chunk({"reasoning": "twice", "reasoning_content": "twice"}), "stamps", [0.0]),
        (chunk({"content": None, "tool_calls": None}), "stamps", []),
        (b'{"error": {"message": "no engine"}}', "failure", "no engine"),
        (b'{"error": "bad"}', "failure", "bad"),
        (b"{", "failure", "an event that is not JSON: {"),
        (b"3", "failure", None),
        (b'{"choices": "x", "usage": {"prompt_tokens": "many"}}', "usage", ReceivedUsage(0, 0, None)),
    ],
)
def test_other_servers_and_broken_ones(payload: bytes, name: str, value: object) -> None:
    assert getattr(taken(payload), name) == value


@given(st.binary(max_size=300))
def test_no_bytes_break_an_answer(data: bytes) -> None:
    taken(data)
