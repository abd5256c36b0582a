"""Encode stream events as Anthropic's message events and objects."""

from __future__ import annotations

from typing import Any, assert_never

import msgspec

from api.answers import sse
from api.answers.answer_blocks import Block, ReasoningBlock, TextBlock, ToolCallBlock
from api.answers.block_sequence import BlockClosed, BlockOpened, BlockSequence, Grown, Step
from api.answers.errors import ApiError
from api.answers.whole_answer import WholeAnswer
from api.dialects.openai.encode import marked
from scheduler.events import (
    AnswerPiece,
    Finished,
    FinishReason,
    MalformedCall,
    Progress,
    TextDelta,
    ToolCallStarted,
    Usage,
)

_json = msgspec.json.Encoder()

SIGNATURE = "cGVuc3RvY2s="
"""This server does not sign thoughts, but clients drop thoughts without a signature when they send a turn
back."""

_EMPTY = {"type": "text", "text": ""}
"""The one block of an answer that the model ended at once: many clients read the first one unasked."""
_PING = sse.named(b"ping", b'{"type":"ping"}')


def usage_object(usage: Usage) -> dict[str, Any]:
    """Return the usage. Anthropic counts cached tokens separately, not among the input tokens."""
    return {
        "input_tokens": usage.prompt_tokens - usage.cached_tokens,
        "cache_creation_input_tokens": 0,
        "cache_read_input_tokens": usage.cached_tokens,
        "output_tokens": usage.output_tokens,
        "output_tokens_details": {"thinking_tokens": usage.reasoning_tokens},
    }


def stop_reason(finished: Finished, *, calls: bool = True) -> str:
    """Return Anthropic's stop reason. `calls` is whether there is a tool call that can be run."""
    match finished.reason:
        case FinishReason.STOP:
            return "end_turn" if finished.stop_string is None else "stop_sequence"
        case FinishReason.LENGTH:
            return "max_tokens"
        case FinishReason.TOOL_CALLS:
            return "tool_use" if calls else "end_turn"
        case _:
            assert_never(finished.reason)


def message_object(public_id: str, model: str, answer: WholeAnswer, *, show_thinking: bool) -> dict[str, Any]:
    """Return the whole answer to a request that does not stream."""
    (choice,) = answer.choices
    found = [_content(block, show_thinking) for block in choice.sendable_blocks]
    contents = [content for content in found if content is not None] if found else [_EMPTY]
    return {
        **_envelope(public_id, model),
        "content": contents,
        "stop_reason": stop_reason(choice.end, calls="tool_use" in [each["type"] for each in contents]),
        "stop_sequence": choice.end.stop_string,
        "usage": usage_object(answer.usage),
        **marked(choice.end),
    }


def _envelope(public_id: str, model: str) -> dict[str, Any]:
    return {"id": public_id, "type": "message", "role": "assistant", "model": model}


def _content(block: Block, show_thinking: bool) -> dict[str, Any] | None:
    """Return the block for the client, or None for a call that the end of the answer has cut, which cannot be
    run. A call that cannot be parsed becomes text, because `input` must be an object."""
    match block:
        case TextBlock(text=text):
            return {"type": "text", "text": text}
        case ReasoningBlock(text=text):
            shown = text if show_thinking else ""
            return {"type": "thinking", "thinking": shown, "signature": SIGNATURE}
        case ToolCallBlock(malformed=text) if text:
            return {"type": "text", "text": text}
        case ToolCallBlock(call_id=call_id, name=name, input=arguments):
            if arguments is None:
                return None
            return {"type": "tool_use", "id": call_id, "name": name, "input": arguments}
        case _:
            assert_never(block)


class MessageEncoder:
    """Encodes one stream's events as bytes ready for the wire."""

    def __init__(self, public_id: str, model: str, *, show_thinking: bool) -> None:
        self._public_id = public_id
        self._model = model
        self._show_thinking = show_thinking
        self._blocks = BlockSequence()
        self._finished: Finished | None = None
        self._calls = 0
        """Number of tool calls that can be run."""

    def start(self, prompt_tokens: int) -> bytes:
        """Return the first events. They are sent immediately, because Anthropic's clients take them as
        acceptance of the request. The number of cached prompt tokens is not known yet; the counts of
        `message_delta` replace these."""
        message = {
            **_envelope(self._public_id, self._model),
            "content": [],
            "stop_reason": None,
            "stop_sequence": None,
            "usage": usage_object(Usage(prompt_tokens, cached_tokens=0, output_tokens=0)),
        }
        return _event("message_start", {"message": message})

    def event(self, choice: int, event: AnswerPiece | Finished) -> bytes:
        if isinstance(event, Finished):
            self._finished = event
            if self._blocks.is_empty:
                started = _event("content_block_start", {"index": 0, "content_block": _EMPTY})
                return started + _event("content_block_stop", {"index": 0})
            return b"".join([self._step(step) for step in self._blocks.end()])
        match event:
            case ToolCallStarted():
                self._calls += 1
            case MalformedCall(text=text, index=index):
                # The call's block ends here, and its text follows: a rest that is not JSON would make the
                # official clients raise.
                self._calls -= index is not None
                event = TextDelta(text)
            case _:
                pass
        return b"".join([self._step(step) for step in self._blocks.add(event)])

    def _step(self, step: Step) -> bytes:
        match step:
            case BlockOpened(index=index, block=block):
                return _event("content_block_start", {"index": index, "content_block": _empty(block)})
            case Grown(index=index, block=block, text=text):
                return self._delta(index, block, text)
            case BlockClosed(index=index, block=ReasoningBlock()):
                signed = _delta(index, b'"signature_delta","signature":', SIGNATURE)
                return signed + _event("content_block_stop", {"index": index})
            case BlockClosed(index=index):
                return _event("content_block_stop", {"index": index})
            case _:
                assert_never(step)

    def _delta(self, index: int, block: Block, text: str) -> bytes:
        match block:
            case TextBlock():
                return _delta(index, b'"text_delta","text":', text)
            case ReasoningBlock():
                # A client that does not ask for reasoning still sees that the answer makes progress.
                return _delta(index, b'"thinking_delta","thinking":', text) if self._show_thinking else _PING
            case ToolCallBlock():
                return _delta(index, b'"input_json_delta","partial_json":', text)
            case _:
                assert_never(block)

    def progress(self, progress: Progress) -> bytes:
        return _PING

    def finish(self, usage: Usage) -> bytes:
        assert self._finished is not None, "the choice ends before the answer"
        reason = stop_reason(self._finished, calls=self._calls > 0)
        delta = {"stop_reason": reason, "stop_sequence": self._finished.stop_string}
        mark = marked(self._finished)
        end = _event("message_delta", {"delta": delta, "usage": usage_object(usage), **mark})
        return end + _event("message_stop", {})

    def error(self, error: ApiError) -> bytes:
        """Return the last event, which Anthropic's clients raise as an exception."""
        return sse.named(b"error", _json.encode(error.anthropic_body()))


def _event(name: str, fields: dict[str, Any]) -> bytes:
    return sse.named(name.encode(), _json.encode({"type": name, **fields}))


def _delta(index: int, kind: bytes, text: str) -> bytes:
    head = b'{"type":"content_block_delta","index":%d,"delta":{"type":' % index
    return sse.named(b"content_block_delta", head + kind + _json.encode(text) + b"}}")


def _empty(block: Block) -> dict[str, Any]:
    match block:
        case TextBlock():
            return {"type": "text", "text": ""}
        case ReasoningBlock():
            return {"type": "thinking", "thinking": "", "signature": ""}
        case ToolCallBlock(call_id=call_id, name=name):
            return {"type": "tool_use", "id": call_id, "name": name, "input": {}}
        case _:
            assert_never(block)
