"""Convert items of a response's input and blocks of its output to messages for chat templates."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, assert_never

from api.answers.answer_blocks import Block, ReasoningBlock, TextBlock, ToolCallBlock
from api.dialects.openai.messages import not_json, spoken
from api.dialects.responses.items import (
    AddedTools,
    Call,
    InputItem,
    ItemReference,
    Message,
    ReasoningItem,
    Remark,
    Result,
    joined_text,
)
from api.dialects.volatile_headers import stable
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


Find = Callable[[str], InputItem]
"""Returns the stored item with an id."""


def input_messages(items: Iterable[InputItem], find: Find) -> Iterator[TemplateMessage]:
    """`find` raises what refuses a reference to an item that is not there."""
    turn = _Turn()
    for sent in items:
        item = find(sent.id) if isinstance(sent, ItemReference) else sent
        match item:
            case ReasoningItem():
                turn.think(item.text)
            case Call(call_id=call_id, outcome=outcome):
                turn.call(call_id or "", item.offered_name, item.arguments)
                if outcome is not None:
                    yield from turn.take()
                    yield _result(call_id, joined_text(outcome))
            case Message(role="assistant"):
                turn.say(joined_text(item.content))
            case Message():
                yield from turn.take()
                yield from _spoken(item)
            case Result(call_id=call_id, output=output):
                yield from turn.take()
                yield _result(call_id, joined_text(output))
            case Remark(line=line):
                turn.say(line)
            case AddedTools():
                pass
            case ItemReference():
                raise AssertionError("a stored item refers to no other")
            case _:
                assert_never(item)
    yield from turn.take()


def _result(call_id: str | None, text: str) -> TemplateMessage:
    whose = {} if call_id is None else {"tool_call_id": call_id}
    return {"role": "tool", **whose, "content": text}


def _spoken(item: Message) -> Iterator[TemplateMessage]:
    """`developer` is OpenAI's newer name for `system`."""
    parts = spoken(item.content)
    if item.role in ("user", "tool"):
        yield {"role": item.role, "content": "".join(parts)}
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
