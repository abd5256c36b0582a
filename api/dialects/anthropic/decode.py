"""Decode an Anthropic body into a `GenerationRequest`."""

from __future__ import annotations

import secrets
from collections.abc import Iterable, Iterator
from itertools import groupby
from typing import Any, assert_never

from api.access.identity import ANYBODY, Caller
from api.dialects.anthropic.content import (
    ContentBlock,
    Document,
    Image,
    InputMessage,
    Text,
    Thinking,
    ToolResult,
    ToolUse,
    hold_seconds,
    joined,
    texts,
)
from api.dialects.anthropic.schema import CountTokensRequest, MessagesRequest
from api.dialects.anthropic.tools import CustomTool
from api.dialects.openai.structured import structure
from api.dialects.openai.thinking import reasoning_of
from api.dialects.spellings import THINKING_BUDGET, token_bound_of
from api.dialects.volatile_headers import stable
from api.options.model_defaults import NEUTRAL, Defaults
from scheduler.errors import InvalidRequest
from scheduler.request import (
    ChatPrompt,
    GenerationRequest,
    Hold,
    Message,
    Tool,
    ToolChoice,
)


def generation_request(
    body: MessagesRequest, defaults: Defaults = NEUTRAL, caller: Caller = ANYBODY, adapter: str = ""
) -> GenerationRequest:
    """Decode the body. `defaults` of the model's name apply to what it omits. Raise InvalidRequest."""
    return GenerationRequest(
        public_id=f"msg_{secrets.token_hex(12)}",
        prompt=chat_prompt(body, defaults),
        sampling=defaults.sampling_for(body, seed=secrets.randbits(63)),
        max_tokens=token_bound_of(body),
        stop=tuple(body.stop_sequences or ()),
        structure=structure(body),
        thinking_tokens=THINKING_BUDGET.value_of(body),
        holds=tuple(_holds(body)),
        **caller.fields(adapter),
    )


def _holds(body: MessagesRequest) -> Iterator[Hold]:
    """Yield, for each time to live, the last place that names it. A mark within a turn holds the turn."""
    if body.cache_control is not None and body.cache_control.seconds is not None:
        yield Hold(None, body.cache_control.seconds)
    last: dict[float, int] = {}
    marks = [tool.cache_control for tool in body.tools or ()]
    marks += [block.cache_control for block in body.system or ()]
    last.update((mark.seconds, 1) for mark in marks if mark is not None and mark.seconds is not None)
    blocks = (block for turn in body.messages for block in turn.content)
    if not last and not any(True for block in blocks for _ in hold_seconds(block)):
        return
    count = int(any(stable(block.text for block in body.system or ())))
    for _, group in groupby(body.messages, key=lambda turn: turn.role):
        turns = list(group)
        count += sum(1 for _ in _messages(turns))
        for turn in turns:
            last.update((seconds, count) for block in turn.content for seconds in hold_seconds(block))
    for seconds, messages in last.items():
        yield Hold(messages, seconds)


def chat_prompt(body: CountTokensRequest, defaults: Defaults = NEUTRAL) -> ChatPrompt:
    """Return the prompt. Raise InvalidRequest for a block in a place where no template could write it."""
    system = stable(block.text for block in body.system or ())
    messages: list[Message] = [{"role": "system", "content": joined(system)}] if system else []
    messages.extend(_messages(body.messages))
    choice = body.tool_choice
    return ChatPrompt(
        messages=tuple(messages),
        tools=tuple(_tool(tool, f"tools.{i}") for i, tool in enumerate(body.tools or ())),
        tool_choice=ToolChoice.AUTO if choice is None else _CHOICES[choice.type],
        only_tool=None if choice is None else choice.name,
        parallel_tool_calls=choice is None or not choice.disable_parallel_tool_use,
        template_options=dict(body.chat_template_kwargs or {}),
        reasoning=defaults.reasoning_for(reasoning_of(body), body.chat_template_kwargs),
        continue_final=body.messages[-1].role == "assistant",
    )


_CHOICES = {
    "auto": ToolChoice.AUTO,
    "none": ToolChoice.NONE,
    "any": ToolChoice.REQUIRED,
    "tool": ToolChoice.REQUIRED,
}


def _tool(tool: CustomTool, place: str) -> Tool:
    return Tool(
        tool.name, tool.description or "", tool.input_schema, bool(tool.strict), f"{place}.input_schema"
    )


def _messages(turns: Iterable[InputMessage]) -> Iterator[Message]:
    """Return messages as chat templates take them. Consecutive messages of one role become one turn."""
    for role, group in groupby(turns, key=lambda turn: turn.role):
        blocks = [block for turn in group for block in turn.content]
        match role:
            case "assistant":
                yield _assistant(blocks)
            case "user":
                yield from _user(blocks)
            case "system":
                kept = stable(texts(_only_text(blocks, role)))
                if kept:
                    yield {"role": "system", "content": joined(kept)}


def _assistant(blocks: list[ContentBlock]) -> Message:
    calls: list[dict[str, Any]] = []
    thoughts: list[str] = []
    for block in blocks:
        match block:
            case Text() | Image() | Document():
                pass
            case Thinking(thinking=thinking):
                thoughts.append(thinking)
            case ToolUse(id=call_id, name=name, input=arguments):
                function = {"name": name, "arguments": arguments}
                calls.append({"id": call_id, "type": "function", "function": function})
            case ToolResult():
                raise _misplaced(block, "assistant")
            case _:
                assert_never(block)
    message: Message = {"role": "assistant", "content": joined(texts(blocks))}
    if any(thoughts):
        message["reasoning_content"] = "".join(thoughts)
    if calls:
        message["tool_calls"] = calls
    return message


def _user(blocks: list[ContentBlock]) -> Iterator[Message]:
    """Make each tool result a message of its own; the user's text around it keeps its place."""
    user_texts: list[str] = []
    for block in blocks:
        if isinstance(block, ToolResult):
            if user_texts:
                yield {"role": "user", "content": joined(user_texts)}
                user_texts = []
            yield {"role": "tool", "tool_call_id": block.tool_use_id, "content": block.text}
        else:
            user_texts.extend(texts(_only_text([block], "user")))
    if user_texts or not blocks:
        yield {"role": "user", "content": joined(user_texts)}


def _only_text(blocks: list[ContentBlock], role: str) -> list[ContentBlock]:
    for block in blocks:
        if not isinstance(block, Text | Image | Document):
            raise _misplaced(block, role)
    return blocks


def _misplaced(block: ContentBlock, role: str) -> InvalidRequest:
    return InvalidRequest(f"messages of role {role!r} cannot contain {block.type} blocks", param="messages")
