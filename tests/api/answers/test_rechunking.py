"""The final message does not depend on the pieces of an answer's tokens, streamed and whole.

(The tests of the answer pipeline check that its own pieces do not depend on how tokens are fed.)
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from api.answers.whole_answer import WholeAnswer, WholeChoice
from api.bodies.json_pieces import json_text
from api.dialects.anthropic.encode import MessageEncoder, message_object
from api.dialects.completions.encode import CompletionEncoder
from api.dialects.openai.encode import ChunkEncoder
from api.dialects.responses.encode import ResponseEncoder
from api.dialects.responses.envelope import Envelope, status_of
from api.dialects.responses.schema import CreateResponse
from scheduler.events import (
    AnswerPiece,
    Finished,
    FinishReason,
    ReasoningDelta,
    TextDelta,
    TokenLogprobs,
    ToolCallArguments,
    ToolCallStarted,
    Usage,
)
from scheduler.request import Sampling
from tests.api.client import events
from tests.api.dialects.test_chat_tools import joined
from tests.api.transcripts import message_of, named_events, response_of

USAGE = Usage(prompt_tokens=9, cached_tokens=4, output_tokens=30, reasoning_tokens=2)
WORDS = st.text(
    st.sampled_from('ab \n\t"\\\u2028é🦊') | st.characters(codec="utf-8"),
    min_size=1,
    max_size=24,
)
ARGUMENTS = st.dictionaries(st.text(max_size=4), st.integers() | st.text(max_size=4), max_size=3)
SECTION = (
    st.tuples(st.just("text"), WORDS)
    | st.tuples(st.just("text"), st.sampled_from([" ", "\n\n"]))
    | st.tuples(st.just("reasoning"), WORDS)
    | st.tuples(st.just("call"), ARGUMENTS.map(json.dumps))
)
ANSWERS = st.lists(SECTION, max_size=6)


def pieces(sections: list[tuple[str, str]], cuts: list[int]) -> Iterator[AnswerPiece]:
    """Return the sections' texts, in pieces that `cuts` chooses."""
    calls = 0
    for kind, text in sections:
        places = sorted({0, len(text), *(cut % (len(text) + 1) for cut in cuts)})
        parts = [text[start:end] for start, end in pairwise(places)]
        if kind == "call":
            yield ToolCallStarted(calls, f"call_{calls}", f"f{calls}")
            yield from (ToolCallArguments(calls, part) for part in parts)
            calls += 1
        elif kind == "text":
            yield from (TextDelta(part, tuple(map(logprobs_of, part))) for part in parts)
        else:
            yield from (ReasoningDelta(part) for part in parts)


def logprobs_of(character: str) -> TokenLogprobs:
    """Return a token for each character, so that each piece has its own."""
    return TokenLogprobs.of(ord(character), -1.0, (), spelled)


def spelled(token_id: int) -> bytes:
    return chr(token_id).encode()


def finished(reason: FinishReason) -> Finished:
    return Finished(reason, USAGE)


def whole(found: list[AnswerPiece], reason: FinishReason) -> WholeAnswer:
    choice = WholeChoice(finished=finished(reason))
    for piece in found:
        choice.add(piece)
    return WholeAnswer((choice,))


def anthropic_stream(found: list[AnswerPiece], reason: FinishReason) -> dict[str, Any]:
    encoder = MessageEncoder("msg_1", "m", show_thinking=True)
    body = encoder.start(9) + b"".join([encoder.event(0, piece) for piece in found])
    body += encoder.event(0, finished(reason)) + encoder.finish(USAGE)
    return message_of(named_events(body.decode()))


ENVELOPE = Envelope.of(CreateResponse(input="x"), "resp_1", "m", Sampling(), {})  # type: ignore[arg-type]


def responses_stream(found: list[AnswerPiece], reason: FinishReason) -> dict[str, Any]:
    encoder = ResponseEncoder(ENVELOPE, lambda *_: None)
    frames = [encoder.start(9), *(encoder.event(0, piece) for piece in found)]
    frames += [encoder.event(0, finished(reason)), encoder.finish(USAGE)]
    body = b"".join([frame if isinstance(frame, bytes) else b"".join(frame) for frame in frames])
    return {**response_of(named_events(body.decode())), "completed_at": None}


@pytest.mark.parametrize("reason", [FinishReason.STOP, FinishReason.LENGTH])
@given(sections=ANSWERS, cuts=st.lists(st.integers(0, 30), max_size=8))
def test_anthropic_messages(reason: FinishReason, sections: list[tuple[str, str]], cuts: list[int]) -> None:
    """Blocks never overlap (the reader checks that), and only the first may be white space."""
    message = anthropic_stream(list(pieces(sections, cuts)), reason)
    uncut = list(pieces(sections, []))
    assert message == anthropic_stream(uncut, reason)
    assert message == message_object("msg_1", "m", whole(uncut, reason), show_thinking=True)
    for block in message["content"][1:]:
        assert block["type"] != "text" or block["text"].strip()


@pytest.mark.parametrize("reason", [FinishReason.STOP, FinishReason.LENGTH])
@given(sections=ANSWERS, cuts=st.lists(st.integers(0, 30), max_size=8))
def test_openai_responses(reason: FinishReason, sections: list[tuple[str, str]], cuts: list[int]) -> None:
    """Items never overlap (the reader checks that), and the last event equals the sum of the others."""
    response = responses_stream(list(pieces(sections, cuts)), reason)
    uncut = list(pieces(sections, []))
    assert response == responses_stream(uncut, reason)
    blocks = whole(uncut, reason).choices[0].sendable_blocks
    items = json.loads(json_text(ENVELOPE.items(blocks, reason)))
    for item in items:
        for part in item["content"] if item["type"] == "message" else ():
            assert "".join([entry["token"] for entry in part["logprobs"]]) == part["text"]
    whole_response = json.loads(json_text(ENVELOPE.response(status_of(reason), items, USAGE)))
    assert response == {**whole_response, "completed_at": None}


@pytest.mark.parametrize("reason", [FinishReason.STOP, FinishReason.LENGTH])
@given(sections=ANSWERS, cuts=st.lists(st.integers(0, 30), max_size=8))
def test_openai_chat_completions(
    reason: FinishReason, sections: list[tuple[str, str]], cuts: list[int]
) -> None:
    """The deltas, joined as the official client joins them; one finish reason, one usage, one end."""
    encoder = ChunkEncoder("chatcmpl-1", 7, "m", include_usage=True)
    found = [*pieces(sections, cuts), finished(reason)]
    body = encoder.start(9) + b"".join([encoder.event(0, piece) for piece in found]) + encoder.finish(USAGE)
    *chunks, usage, end = events(body.decode())
    whole_object = encoder.whole(whole(list(pieces(sections, [])), reason))
    (choice,) = whole_object["choices"]
    message = {"content": "", "reasoning_content": "", "tool_calls": [], **choice["message"]}
    assert {**joined(chunks), "role": "assistant"} == {**message, "content": message["content"] or ""}
    reasons = [chunk["choices"][0]["finish_reason"] for chunk in chunks]
    assert reasons == [None] * (len(chunks) - 1) + [choice["finish_reason"]]
    assert (usage["choices"], usage["usage"], end) == ([], whole_object["usage"], "[DONE]")


@given(text=WORDS, cuts=st.lists(st.integers(0, 30), max_size=8), echo=st.text(max_size=3))
def test_openai_completions(text: str, cuts: list[int], echo: str) -> None:
    """The echoed prompt comes once, first."""
    encoder = CompletionEncoder("cmpl-1", 7, "m", [echo], include_usage=True)
    found = [*pieces([("text", text)], cuts), finished(FinishReason.STOP)]
    body = encoder.start(9) + b"".join([encoder.event(0, piece) for piece in found]) + encoder.finish(USAGE)
    *chunks, usage, end = events(body.decode())
    encoder = CompletionEncoder("cmpl-1", 7, "m", [echo])
    whole_object = encoder.whole(whole([TextDelta(text)], FinishReason.STOP))
    (choice,) = whole_object["choices"]
    assert "".join(chunk["choices"][0]["text"] for chunk in chunks) == choice["text"] == echo + text
    assert chunks[-1]["choices"][0]["finish_reason"] == choice["finish_reason"] == "stop"
    assert (usage["usage"], end) == (whole_object["usage"], "[DONE]")
