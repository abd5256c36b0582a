"""Convert items of a response's input and blocks of its output to messages for chat templates."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, assert_never

from api.answers.whole_answer import Block, ReasoningBlock, TextBlock, ToolCallBlock
from api.dialects.openai.messages import not_json, spoken
from api.dialects.responses.items import (
    FunctionCall,
    FunctionCallOutput,
    InputItem,
    Message,
    ReasoningItem,
    joined_text,
)
from scheduler.prompt.volatile_headers import stable
from scheduler.request import Message as TemplateMessage


class _Turn:
    """Collects the assistant's reasoning, text and tool calls until another role follows: one message."""

    def __init__(self) -> None:
        self._thoughts: list[str] = []
        self._text: list[str] = []
        self._calls: list[dict[str, Any]] = []

    def think(self, text: str) -> None:
        self._thoughts.append(text)

    def say(self, text: str) -> None:
        self._text.append(text)

    def call(self, call_id: str, name: str, arguments: dict[str, Any]) -> None:
        function = {"name": name, "arguments": arguments}
        self._calls.append({"id": call_id, "type": "function", "function": function})

    def take(self) -> Iterator[TemplateMessage]:
        """Return the message, if there is one, and clear the turn."""
        thoughts, text, calls = "".join(self._thoughts), "".join(self._text), self._calls
        if thoughts or text or calls:
            message: TemplateMessage = {"role": "assistant", "content": text}
            if thoughts:
                message["reasoning_content"] = thoughts
            if calls:
                message["tool_calls"] = calls
            yield message
        self._thoughts, self._text, self._calls = [], [], []


def input_messages(items: Iterable[InputItem]) -> Iterator[TemplateMessage]:
    turn = _Turn()
    for item in items:
        match item:
            case ReasoningItem():
                turn.think(joined_text(item.content))
            case FunctionCall(call_id=call_id):
                turn.call(call_id, item.offered_name, item.function().arguments)
            case Message(role="assistant"):
                turn.say(joined_text(item.content))
            case Message():
                yield from turn.take()
                yield from _spoken(item)
            case FunctionCallOutput(call_id=call_id, output=output):
                yield from turn.take()
                yield {"role": "tool", "tool_call_id": call_id, "content": joined_text(output)}
            case _:
                assert_never(item)
    yield from turn.take()


def _spoken(item: Message) -> Iterator[TemplateMessage]:
    """`developer` is OpenAI's newer name for `system`."""
    parts = spoken(item.content)
    if item.role == "user":
        yield {"role": "user", "content": "".join(parts)}
    elif kept := stable(parts):
        yield {"role": "system", "content": "".join(kept)}


def output_messages(blocks: Iterable[Block]) -> Iterator[TemplateMessage]:
    """Yield an answer as the conversation remembers it. A call that was cut in two is not remembered; one
    that cannot be parsed is, since its client answers it."""
    turn = _Turn()
    for block in blocks:
        match block:
            case TextBlock(text=text):
                turn.say(text)
            case ReasoningBlock(text=text):
                turn.think(text)
            case ToolCallBlock(call_id=call_id, name=name, arguments=arguments, malformed=text) if text:
                turn.call(call_id, name, not_json(arguments))
            case ToolCallBlock(call_id=call_id, name=name, input=arguments):
                if arguments is not None:
                    turn.call(call_id, name, arguments)
            case _:
                assert_never(block)
    yield from turn.take()


def with_instructions(
    instructions: str | None, messages: Sequence[TemplateMessage]
) -> tuple[TemplateMessage, ...]:
    """Prepend the instructions, which belong to one response only. Many templates accept a single system
    message, so those at the beginning are merged."""
    leading = 0
    while leading < len(messages) and messages[leading]["role"] == "system":
        leading += 1
    leading_texts = [instructions] if instructions else []
    leading_texts += [message["content"] for message in messages[:leading]]
    system: list[TemplateMessage] = []
    if leading_texts:
        system.append({"role": "system", "content": "\n\n".join(leading_texts)})
    return (*system, *messages[leading:])
