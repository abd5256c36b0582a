"""Encode stream events as OpenAI's chat chunks and objects.

Consecutive chunks differ only in their text, so chunks are framed from a template: 0.12 microseconds each,
against 4.8 for a pydantic model's dump.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from functools import lru_cache
from itertools import count
from typing import Any, ClassVar, assert_never

import msgspec

from api.answers import sse
from api.answers.answer_blocks import ToolCallBlock
from api.answers.errors import ApiError
from api.answers.input_text import InputText, input_text
from api.answers.whole_answer import WholeAnswer, WholeChoice
from api.bodies.json_pieces import JsonList, json_text
from scheduler.events import (
    AnswerPiece,
    Finished,
    MalformedCall,
    Progress,
    ReasoningDelta,
    TextDelta,
    TokenLogprobs,
    ToolCallArguments,
    ToolCallStarted,
    Usage,
)

_json = msgspec.json.Encoder()


def usage_object(usage: Usage) -> dict[str, Any]:
    return {
        "prompt_tokens": usage.prompt_tokens,
        "completion_tokens": usage.output_tokens,
        "total_tokens": usage.prompt_tokens + usage.output_tokens,
        "prompt_tokens_details": {"cached_tokens": usage.cached_tokens},
        "completion_tokens_details": {"reasoning_tokens": usage.reasoning_tokens},
    }


def logprobs_object(entries: Sequence[TokenLogprobs]) -> dict[str, Any]:
    return {"content": logprobs_list(entries), "refusal": None}


def logprobs_list(entries: Sequence[TokenLogprobs]) -> JsonList:
    return JsonList(lambda: map(_logprobs, entries))


def _logprobs(entry: TokenLogprobs) -> bytes:
    chosen, *top = [
        head + value + tail
        for (head, tail), value in zip(
            (_spelled(entry.spelling(token)) for token in entry.ids),
            _json.encode(entry.values.tolist())[1:-1].split(b","),
            strict=True,
        )
    ]
    return chosen + b',"top_logprobs":[' + b"},".join(top) + (b"}]}" if top else b"]}")


@lru_cache(maxsize=1 << 13)
def _spelled(data: bytes) -> tuple[bytes, bytes]:
    """Return the text before and behind a token's value, cached because tokens recur in an answer."""
    head = b'{"token":' + _json.encode(data.decode("utf-8", "replace")) + b',"logprob":'
    return head, b',"bytes":' + _json.encode(list(data))


def marked(end: Finished) -> dict[str, Any]:
    """Return what stands under `penstock`, beside the finish reason, if there is something to say: that a
    call cannot be parsed, and that the answer repeated itself. The clients' libraries keep, or ignore, fields
    that they do not know."""
    marks = {"malformed_tool_call": bool(end.malformed_calls), "repetition": end.repeats}
    true = {name: True for name, is_so in marks.items() if is_so}
    return {"penstock": true} if true else {}


def _message(choice: WholeChoice, custom_names: Collection[str], shows_reasoning: bool) -> dict[str, Any]:
    calls = [_call(call, call.name in custom_names) for call in choice.tool_calls]
    message: dict[str, Any] = {"role": "assistant", "content": choice.text}
    if shows_reasoning and choice.reasoning:
        message["reasoning_content"] = choice.reasoning
    # As in OpenAI's API: a message with only tool calls has no content.
    return message | {"content": choice.text or None, "tool_calls": calls} if calls else message


def _call(call: ToolCallBlock, is_custom: bool) -> dict[str, Any]:
    if is_custom:
        custom = {"name": call.name, "input": input_text(call.arguments)}
        return {"id": call.call_id, "type": "custom", "custom": custom}
    function = {"name": call.name, "arguments": call.arguments}
    return {"id": call.call_id, "type": "function", "function": function}


class ChunkStream:
    """A chat completion or a completion, whole or in chunks: what stands around each, and how they end."""

    kind: ClassVar[str]
    suffix: ClassVar[str] = ""
    """What a chunk's kind has more."""

    def __init__(self, public_id: str, created: int, model: str, include_usage: bool) -> None:
        self._object = {"id": public_id, "object": self.kind, "created": created, "model": model}
        head = {**self._object, "object": self.kind + self.suffix}
        self._head = b"data: " + _json.encode(head)[:-1] + b',"choices":['
        # With include_usage every chunk but the last carries `"usage": null`, says the API reference.
        self._tail = b',"usage":null}\n\n' if include_usage else b"}\n\n"
        self._include_usage = include_usage
        self._ended: set[int] = set()

    def _whole(self, choices: list[dict[str, Any]], usage: Usage) -> dict[str, Any]:
        return {**self._object, "choices": choices, "usage": usage_object(usage)}

    def meter(self, usage: Usage) -> None:
        self._tail = b',"usage":' + _json.encode(usage_object(usage)) + b"}\n\n"

    def start(self, prompt_tokens: int) -> bytes:
        """Return nothing: the first chunk comes with the first token, because clients measure TTFT by it."""
        return b""

    @property
    def _going_on(self) -> int:
        """The first choice that goes on."""
        return next(number for number in count() if number not in self._ended)

    def finish(self, usage: Usage) -> bytes:
        """Return the usage, if requested, and the end mark."""
        if not self._include_usage:
            return sse.DONE
        return self._head + b'],"usage":' + _json.encode(usage_object(usage)) + b"}\n\n" + sse.DONE

    def error(self, error: ApiError) -> bytes:
        """Return an error within a stream, in the form that the official clients raise, and the end mark."""
        return sse.data(_json.encode(error.openai_body())) + sse.DONE


class ChunkEncoder(ChunkStream):
    """Encodes one chat's answer, whole or as chunks that are bytes ready for the wire."""

    kind = "chat.completion"
    suffix = ".chunk"

    def __init__(
        self,
        public_id: str,
        created: int,
        model: str,
        include_usage: bool = False,
        custom_names: Collection[str] = (),
        *,
        shows_reasoning: bool = True,
    ) -> None:
        """`custom_names`: the tools that are called with one text."""
        super().__init__(public_id, created, model, include_usage)
        self._custom_names = custom_names
        self._shows_reasoning = shows_reasoning
        self._texts: dict[int, tuple[int, InputText]] = {}
        """By choice, the number of the custom tool's call that it is in, or was in last, and its text."""
        self._started: set[int] = set()

    def whole(self, answer: WholeAnswer, *, logprobs: bool = False) -> dict[str, Any]:
        choices = [
            {
                "index": index,
                "message": _message(choice, self._custom_names, self._shows_reasoning),
                "logprobs": logprobs_object(choice.logprobs) if logprobs else None,
                "finish_reason": choice.end.reason.value,
                **marked(choice.end),
            }
            for index, choice in enumerate(answer.choices)
        ]
        return self._whole(choices, answer.usage)

    def event(self, choice: int, event: AnswerPiece | Finished) -> bytes:
        if choice in self._started:
            return self._encode(choice, event)
        self._started.add(choice)
        return self._delta(choice, b'"role":"assistant","content":""') + self._encode(choice, event)

    def _encode(self, choice: int, event: AnswerPiece | Finished) -> bytes:
        match event:
            case TextDelta(text=text, logprobs=()):
                return self._delta(choice, b'"content":' + _json.encode(text))
            case TextDelta(text=text, logprobs=logprobs):
                return self._text_with_logprobs(choice, text, logprobs)
            case ReasoningDelta(text=text):
                if not self._shows_reasoning:
                    return b""
                return self._delta(choice, b'"reasoning_content":' + _json.encode(text))
            case ToolCallStarted(index=index, call_id=call_id, name=name):
                over = self._custom_over(choice)
                kind, member = "function", "arguments"
                if name in self._custom_names:
                    kind, member = "custom", "input"
                    self._texts[choice] = index, InputText()
                called = {"name": name, member: ""}
                call = {"index": index, "id": call_id, "type": kind, kind: called}
                return over + self._delta(choice, b'"tool_calls":' + _json.encode([call]))
            case ToolCallArguments(index=index, text=text):
                return self._called_with(choice, index, text)
            case MalformedCall(text=text, index=index, rest=rest):
                if index is None:
                    return self._encode(choice, TextDelta(text))
                return self._called_with(choice, index, rest) if rest else b""
            case Finished(reason=reason):
                self._ended.add(choice)
                over = self._custom_over(choice)
                end = b'},"logprobs":null,"finish_reason":' + _json.encode(reason.value)
                mark = b"," + _json.encode(marks)[1:-1] if (marks := marked(event)) else b""
                return over + self._choice(choice) + end + mark + b"}]" + self._tail
            case _:
                assert_never(event)

    def _called_with(self, choice: int, index: int, text: str) -> bytes:
        kind, member = "function", "arguments"
        if choice in self._texts:
            kind, member, text = "custom", "input", self._texts[choice][1].add(text)
            if not text:
                return b""
        return self._delta(choice, b'"tool_calls":' + _json.encode([{"index": index, kind: {member: text}}]))

    def _custom_over(self, choice: int) -> bytes:
        """Return the rest of the text of the custom tool's call before."""
        if choice not in self._texts:
            return b""
        index, reading = self._texts.pop(choice)
        if not (text := reading.end()):
            return b""
        piece = {"index": index, "custom": {"input": text}}
        return self._delta(choice, b'"tool_calls":' + _json.encode([piece]))

    def _choice(self, index: int) -> bytes:
        return self._head + b'{"index":%d,"delta":{' % index

    def _delta(self, choice: int, fields: bytes) -> bytes:
        return self._choice(choice) + fields + b'},"logprobs":null,"finish_reason":null}]' + self._tail

    def _text_with_logprobs(self, choice: int, text: str, logprobs: Sequence[TokenLogprobs]) -> bytes:
        fields = b'"content":' + _json.encode(text) + b'},"logprobs":'
        scores = json_text(logprobs_object(logprobs))
        return self._choice(choice) + fields + scores + b',"finish_reason":null}]' + self._tail

    def progress(self, progress: Progress) -> bytes:
        """Return a chunk without text, of a choice that goes on: some readers end at a comment."""
        return self._delta(self._going_on, b'"content":""')
