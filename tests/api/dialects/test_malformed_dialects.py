"""Malformed requests, in every dialect: 4xx in its shape, and the engine gets none."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from typing import Any

import pytest
import trio
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pydantic import BaseModel
from trio.testing import MockClock, trio_test

from api.bodies.fields import WithoutEffect
from api.bodies.json_text import MAX_NESTING, check_bounds
from api.dialects.anthropic.schema import CountTokensRequest, MessagesRequest
from api.dialects.completions.schema import CompletionRequest
from api.dialects.openai.messages import not_json, read_json
from api.dialects.openai.schema import ChatCompletionRequest
from api.dialects.responses.schema import CreateResponse
from api.dialects.tokenization import DetokenizeRequest, TokenizeRequest
from tests.api.client import served
from tests.api.dialects.test_chat_tools import HERMES
from tests.examples import examples, some
from tests.fakes.playback import Playback

DEEP: Any = "x"
for _ in range(200):
    DEEP = [DEEP]

JUNK: tuple[Any, ...] = (
    True,
    -1,
    0,
    2**70,
    1e308,
    "",
    "\ud800",
    "a\r\nx-header: b",
    [],
    [None],
    [[]],
    {},
    {"": ""},
    {"type": "function"},
    {"\ud800": 1},
    DEEP,
)


@dataclass(frozen=True)
class Target:
    path: str
    schema: type[BaseModel]
    body: dict[str, Any]

    def check(self, status: int, error: Any) -> None:
        """Check the error's shape."""
        assert status in (400, 404), error
        if self.path.startswith("/v1/messages"):
            assert set(error) == {"type", "error", "request_id"}
            assert set(error["error"]) == {"type", "message"}
            assert error["error"]["type"] in ("invalid_request_error", "not_found_error")
        else:
            assert set(error["error"]) == {"message", "type", "param", "code"}
            assert error["error"]["type"] == "invalid_request_error"


TURNS = [
    {"role": "user", "content": "é🦊"},
    {
        "role": "assistant",
        "content": [
            {"type": "thinking", "thinking": "hm", "signature": "x"},
            {"type": "tool_use", "id": "1", "name": "f", "input": {"a": [1]}},
        ],
    },
    {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "1", "content": "r"}]},
]
ITEMS = [
    {"role": "user", "content": [{"type": "input_text", "text": "é🦊"}]},
    {"type": "reasoning", "id": "rs", "summary": [], "content": [{"type": "reasoning_text", "text": "hm"}]},
    {"type": "function_call", "call_id": "1", "name": "f", "arguments": '{"a": [1]}'},
    {"type": "function_call_output", "call_id": "1", "output": "r"},
]
TOOL = {"name": "f", "input_schema": {"type": "object"}}
MESSAGES = [
    {"role": "system", "content": [{"type": "text", "text": "s"}]},
    {"role": "user", "content": "é🦊"},
    {"role": "assistant", "tool_calls": [{"id": "1", "function": {"name": "f", "arguments": '{"a": [1]}'}}]},
    {"role": "tool", "tool_call_id": "1", "content": "r"},
]
FUNCTION = {"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}
TARGETS = [
    Target(
        "/v1/chat/completions",
        ChatCompletionRequest,
        {"messages": MESSAGES, "tools": [FUNCTION], "max_tokens": 4, "temperature": 0.5},
    ),
    Target("/v1/messages", MessagesRequest, {"max_tokens": 4, "messages": TURNS, "tools": [TOOL]}),
    Target("/v1/messages/count_tokens", CountTokensRequest, {"messages": TURNS, "system": "s"}),
    Target("/v1/completions", CompletionRequest, {"prompt": ["é🦊", [1, 2]], "max_tokens": 4}),
    Target("/v1/responses", CreateResponse, {"input": ITEMS, "instructions": "s", "max_output_tokens": 4}),
    Target("/tokenize", TokenizeRequest, {"prompt": "é🦊"}),
    Target("/detokenize", DetokenizeRequest, {"tokens": [1, 2, 3]}),
]
BY_PATH = pytest.mark.parametrize("target", TARGETS, ids=[target.path for target in TARGETS])


def run(target: Target, bodies: list[bytes], *, may_pass: bool) -> None:
    async def check() -> None:
        async with served(launcher := Playback("ok"), answer_format=HERMES) as client:
            for body in bodies:
                before = launcher.submitted
                response = await client.post(target.path, content=body)
                if not may_pass or response.status_code != 200:
                    target.check(response.status_code, response.json())
                    assert launcher.submitted == before

    trio.run(check, clock=MockClock(autojump_threshold=0))


@BY_PATH
def test_junk_in_any_field_is_accepted_or_refused(target: Target) -> None:
    """Wrong types, huge numbers, deep lists, lone surrogates, line breaks."""
    fields = (*target.schema.model_fields, "no_such_field")
    bodies = [{**target.body, field: junk} for field in fields for junk in some(JUNK)]
    run(target, [json.dumps(body).encode() for body in bodies], may_pass=True)


@pytest.mark.parametrize("target", TARGETS[:-1], ids=[target.path for target in TARGETS[:-1]])
def test_a_word_or_a_number_is_no_boolean(target: Target) -> None:
    """ "yes" and 1 are refused in every field that is true or false, and has an effect."""
    fields = [
        name
        for name, field in target.schema.model_fields.items()
        if re.search(r"\bbool\b", str(field.annotation))
        and not any(isinstance(one, WithoutEffect) for one in field.metadata)
    ]
    assert fields or target.path.endswith("count_tokens")
    bodies = [{**target.body, name: value} for name in fields for value in ("yes", "true", 1, 0)]
    run(target, [json.dumps(body).encode() for body in bodies], may_pass=False)


@BY_PATH
def test_what_is_no_json_is_refused(target: Target) -> None:
    """Truncated anywhere, also inside a character; not an object; NaN; not UTF-8."""
    whole = json.dumps(target.body, ensure_ascii=False).encode()
    bodies = [whole[:end] for end in some(range(0, len(whole), 5))]
    bodies += [b"[1]", b'"text"', b"null", b"\xff\xfe", b"NaN", b"[" * 100_000, b'{"a":' * 100_000]
    for strange in (b"NaN", b"Infinity", b"-Infinity", b'"\\ud80"', b'{"\\udfff:1}', b"1e999", b"01"):
        bodies.append(b'{"metadata":' + strange + b"," + whole[1:])
    run(target, bodies, may_pass=False)


@BY_PATH
@settings(max_examples=examples(12), deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(data=st.data())
def test_any_byte_changed_never_breaks_the_server(target: Target, data: st.DataObject) -> None:
    """Requests that are still valid are answered."""
    changed = bytearray(json.dumps(target.body, ensure_ascii=False).encode())
    for position in data.draw(st.lists(st.integers(0, len(changed) - 1), min_size=1, max_size=4)):
        changed[position] = data.draw(st.integers(0, 255))
    run(target, [bytes(changed)], may_pass=True)


@given(depth=st.integers(1, 3 * MAX_NESTING), text=st.text(st.sampled_from('[]{}"\\ a'), max_size=12))
def test_depth_is_counted_outside_of_strings(depth: int, text: str) -> None:
    """For any content of strings, also if keys are strings."""
    value: Any = text
    for level in range(depth):
        value = [value, text] if level % 2 else {text: value}
    if depth <= MAX_NESTING:
        check_bounds(json.dumps(value).encode())
    else:
        with pytest.raises(ValueError, match="nested deeper"):
            check_bounds(json.dumps(value).encode())


@trio_test
async def test_a_calls_arguments_that_are_too_deep_are_a_text(autojump_clock: MockClock) -> None:
    """They are JSON in a string, of a call that is over: templates walk values, and get none of it."""
    arguments = '{"a":' * 200 + "1" + "}" * 200
    item = {"type": "function_call", "call_id": "1", "name": "f", "arguments": arguments}
    async with served(Playback("ok"), answer_format=HERMES) as client:
        answer = await client.post("/v1/responses", json={"input": [item]})
    assert answer.status_code == 200, answer.text
    assert read_json(arguments) == not_json(arguments)


def test_a_string_that_never_ends_is_read_once() -> None:
    """Sixteen megabytes of escaped quotes take linear time, not quadratic."""
    check_bounds(b"[" * MAX_NESTING + b'"' + b'\\"[' * (5 << 20))
    with pytest.raises(ValueError, match="nested deeper"):
        check_bounds(b'"' + b'\\"' * (8 << 20) + b'"' + b"[" * (MAX_NESTING + 1))
