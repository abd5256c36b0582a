"""`POST /v1/messages`: whole and streamed answers for Anthropic's clients."""

from __future__ import annotations

from typing import Any

import pytest
from trio.testing import MockClock, trio_test

from api.answers.answer_blocks import ToolCallBlock
from api.dialects.anthropic.encode import SIGNATURE, MessageEncoder
from scheduler.answer.answer_format import PLAIN, AnswerFormat
from scheduler.events import (
    Finished,
    FinishReason,
    ReasoningDelta,
    TextDelta,
    ToolCallArguments,
    ToolCallStarted,
    Usage,
)
from tests.api.client import served
from tests.api.dialects.test_chat_tools import HERMES, SAID
from tests.api.dialects.test_decoding import TOOLS, message_body
from tests.api.transcripts import message_of, named_events
from tests.fakes.loopback_engine import LoopbackLauncher
from tests.fakes.playback import Playback

INVALID = "invalid_request_error"


async def ask(*texts: str, answer_format: AnswerFormat = PLAIN, **fields: Any) -> Any:
    """Return the answer of an engine that writes `texts`: a message, or a stream's events."""
    body = message_body(**fields)
    async with served(Playback(*texts), answer_format=answer_format) as client:
        response = await client.post("/v1/messages", json=body)
    assert response.status_code == 200, response.text
    return named_events(response.text) if body.get("stream") else response.json()


@trio_test
async def test_an_answer_of_nothing_has_one_empty_text(autojump_clock: MockClock) -> None:
    """Clients read the first block unasked, and a model may end its turn at once."""
    whole, events = await ask(""), await ask("", stream=True)
    assert whole["content"] == message_of(events)["content"] == [{"type": "text", "text": ""}]
    assert (whole["stop_reason"], whole["usage"]["output_tokens"]) == ("end_turn", 1)


def test_the_bytes_of_a_stream() -> None:
    """The whole body of a short answer, as it goes over the wire."""
    encoder = MessageEncoder("msg_1", 'm"1', show_thinking=True)
    usage = Usage(prompt_tokens=20, cached_tokens=16, output_tokens=3)
    pieces: list[Any] = [ReasoningDelta("hm"), TextDelta('"\n\u2028é🦊')]
    pieces += [ToolCallStarted(0, "call_1", "f"), ToolCallArguments(0, "{}")]
    pieces.append(Finished(FinishReason.TOOL_CALLS, usage))
    body = encoder.start(20) + b"".join(encoder.event(0, piece) for piece in pieces) + encoder.finish(usage)
    delta = '{"type":"content_block_delta","index":%d,"delta":{"type":"%s"}}'
    datas = [
        '{"type":"message_start","message":{"id":"msg_1","type":"message","role":"assistant","model":"m\\"1",'
        '"content":[],"stop_reason":null,"stop_sequence":null,"usage":{"input_tokens":20,'
        '"cache_creation_input_tokens":0,"cache_read_input_tokens":0,"output_tokens":0,'
        '"output_tokens_details":{"thinking_tokens":0}}}}',
        '{"type":"content_block_start","index":0,"content_block":{"type":"thinking","thinking":"",'
        '"signature":""}}',
        delta % (0, 'thinking_delta","thinking":"hm'),
        delta % (0, 'signature_delta","signature":"cGVuc3RvY2s='),
        '{"type":"content_block_stop","index":0}',
        '{"type":"content_block_start","index":1,"content_block":{"type":"text","text":""}}',
        delta % (1, 'text_delta","text":"\\"\\n\u2028é🦊'),
        '{"type":"content_block_stop","index":1}',
        '{"type":"content_block_start","index":2,"content_block":{"type":"tool_use","id":"call_1","name":"f",'
        '"input":{}}}',
        delta % (2, 'input_json_delta","partial_json":"{}'),
        '{"type":"content_block_stop","index":2}',
        '{"type":"message_delta","delta":{"stop_reason":"tool_use","stop_sequence":null},"usage":'
        '{"input_tokens":4,"cache_creation_input_tokens":0,"cache_read_input_tokens":16,"output_tokens":3,'
        '"output_tokens_details":{"thinking_tokens":0}}}',
        '{"type":"message_stop"}',
    ]
    kinds = [data.split('"')[3] for data in datas]
    events = [f"event: {kind}\ndata: {data}\n\n" for kind, data in zip(kinds, datas, strict=True)]
    assert body.decode() == "".join(events)


@pytest.mark.parametrize("stream", [False, True])
@trio_test
async def test_the_stop_sequence_that_matched_is_named(stream: bool, autojump_clock: MockClock) -> None:
    """The one that matched, of several; otherwise the end of the turn, or max_tokens."""
    cases: list[tuple[dict[str, Any], tuple[str, str | None, str]]] = [
        ({"stop_sequences": ["zwei", "STOP"]}, ("stop_sequence", "STOP", "one ")),
        ({}, ("end_turn", None, "one STOP two")),
        ({"max_tokens": 3}, ("max_tokens", None, "one")),
    ]
    for fields, expected in cases:
        answer = await ask("one STOP two", stream=stream, **fields)
        message = message_of(answer) if stream else answer
        (block,) = message["content"]
        assert (message["stop_reason"], message["stop_sequence"], block["text"]) == expected


@trio_test
async def test_half_a_call_is_not_in_a_whole_message(autojump_clock: MockClock) -> None:
    """A client cannot run half a call."""
    message = await ask(SAID, answer_format=HERMES, tools=TOOLS, max_tokens=len(SAID) - 30)
    assert [block["type"] for block in message["content"]] == ["thinking", "text"]
    assert message["stop_reason"] == "max_tokens"


def test_a_calls_input_is_an_object_whatever_its_text_spells() -> None:
    """A lone surrogate is not a character: it is replaced, and the call stays."""
    block = ToolCallBlock("1", "f", '{"a": "x\\ud800", "b": [1]}')
    assert block.input is not None
    assert block.input["b"] == [1]
    assert block.input["a"].encode()
    for half in ("", '{"a', "[1]", '{"a": NaN', "[" * 100_000):
        assert ToolCallBlock("1", "f", half).input is None


@trio_test
async def test_thoughts_can_be_omitted(autojump_clock: MockClock) -> None:
    """The block is present, with its signature and without its text, as Anthropic documents `display`."""
    thinking = {"type": "adaptive", "display": "omitted"}
    whole = await ask(SAID, answer_format=HERMES, thinking=thinking)
    events = await ask(SAID, answer_format=HERMES, thinking=thinking, stream=True)
    for message in (whole, message_of(events)):
        assert message["content"][0] == {"type": "thinking", "thinking": "", "signature": SIGNATURE}
    kinds = [event["type"] for event in events]
    assert kinds[kinds.index("content_block_start") + 1] == "ping", "the client sees that it goes on"


@trio_test
async def test_tokens_are_counted_as_they_are_used(autojump_clock: MockClock) -> None:
    """`count_tokens` of a body equals the usage of its answer; volatile headers do not count."""
    system = [
        {"type": "text", "text": "x-anthropic-billing-header: cc=1;"},
        {"type": "text", "text": "Be kind."},
    ]
    body = message_body(system=system, tools=TOOLS)
    async with served(Playback("ok"), answer_format=HERMES) as client:
        message = (await client.post("/v1/messages", json=body)).json()
        del body["max_tokens"]
        counted = (await client.post("/v1/messages/count_tokens", json=body)).json()
        whole = await client.post("/v1/messages/count_tokens", json=body | {"max_tokens": 1})
        del body["messages"]
        missing = await client.post("/v1/messages/count_tokens", json=body)
    assert counted == {"input_tokens": message["usage"]["input_tokens"]}
    assert whole.json() == counted, "max_tokens is no field of it, and is ignored"
    assert missing.json()["error"]["message"].startswith("messages: ")


@trio_test
async def test_other_paths_and_methods_have_the_same_shape(autojump_clock: MockClock) -> None:
    """Everything below /v1/messages, and nothing else."""
    async with served(LoopbackLauncher()) as client:
        batches = await client.post("/v1/messages/batches", json={})
        method = await client.get("/v1/messages")
        broken = await client.post("/v1/messages", content=b"{")
    found = [(answer.status_code, answer.json()["error"]["type"]) for answer in (batches, method, broken)]
    assert found == [(404, "not_found_error"), (405, INVALID), (400, INVALID)]
