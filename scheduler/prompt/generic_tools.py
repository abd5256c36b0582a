"""Tools for models whose chat template has none: described, called and answered in text.

The tools stand in the system turn, a call is `<tool_call>` with one JSON object in it (Hermes' and Qwen's
form, which small models have seen most), and a result is the user's turn, `<tool_response>`. The template
gets roles that every template has, in the strictest order: one system turn, then user and assistant in turns.
What a message becomes does not depend on those after it, so each turn's prompt begins with the one before.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from scheduler.answer.answer_format import GENERIC_CALL, GENERIC_RESULT
from scheduler.prompt.chat_template import Renderer, alternating, answers_joined, tried, without_system
from scheduler.prompt.history_forms import PROBE_TOOL
from scheduler.request import ChatPrompt, Message, Tool

_SYSTEM, _FIRST = "penstock system", "penstock first"
_ASKED: Message = {"role": "user", "content": _FIRST}


def knows_tools(render: Renderer) -> bool:
    """Return whether the template renders tools; one that raises counts as yes."""
    texts = [tried(render, ChatPrompt((_ASKED,), tools=tools)) for tools in ((), (PROBE_TOOL,))]
    return None in texts or texts[0] != texts[1]


def has_system_turn(render: Renderer) -> bool:
    """Return whether a template writes a system message before the first question, in a turn of its own. Some
    raise, some leave it out, some write it before the last question, where each turn would move it."""
    turns: tuple[Message, ...] = (
        {"role": "system", "content": _SYSTEM},
        _ASKED,
        {"role": "assistant", "content": "penstock answer"},
        {"role": "user", "content": "penstock last"},
    )
    folded = without_system(turns)[0]["content"]
    text = tried(render, ChatPrompt(turns)) or ""
    return folded not in text and 0 <= text.find(_SYSTEM) < text.find(_FIRST)


def rewritten(prompt: ChatPrompt, *, system_turn: bool) -> ChatPrompt:
    """Return `prompt` with its tools, calls and results written as text of its messages; unchanged if it has
    none. `system_turn`: `has_system_turn` of the template."""
    messages, tools = prompt.messages, prompt.offered_tools
    if not tools and not any(message["role"] == "tool" or message.get("tool_calls") for message in messages):
        return prompt
    leading = next((i for i, message in enumerate(messages) if message["role"] != "system"), len(messages))
    described = [{"role": "system", "content": description(tools)}] if tools else []
    texts = [*messages[:leading], *described, *map(_as_text, messages[leading:])]
    turns = answers_joined(alternating(texts))
    return replace(prompt, messages=turns if system_turn else without_system(turns), tools=())


def description(tools: Sequence[Tool]) -> str:
    """Return the text for the system turn: one line a tool."""
    functions = "\n".join(json.dumps(tool.definition(), ensure_ascii=False) for tool in tools)
    call = _call('"name of the function"', '{"name of an argument": "its value"}')
    return (
        "# Tools\n\nYou can call these functions, each described by one line of JSON:\n"
        f"<tools>\n{functions}\n</tools>\n\n"
        f"To call one, write nothing but this, with the function's name and its arguments:\n{call}\n\n"
        "To call several, write several of these. Then stop: the results come in the next message, each in"
        f" {GENERIC_RESULT} tags. Where no function is needed, answer in words."
    )


def _call(name: str, arguments: str) -> str:
    """Return the call in the form that the grammar enforces and the parser reads."""
    start, end = GENERIC_CALL
    return f'{start}\n{{"name": {name}, "arguments": {arguments}}}\n{end}'


def _as_text(message: Message) -> Message:
    content = message.get("content") or ""
    if message["role"] == "tool":
        closing = GENERIC_RESULT.replace("<", "</")
        return {"role": "user", "content": f"{GENERIC_RESULT}\n{content}\n{closing}"}
    if not message.get("tool_calls"):
        return message
    calls = "\n".join(map(_written, message["tool_calls"]))
    rest = {name: value for name, value in message.items() if name != "tool_calls"}
    return {**rest, "content": f"{content}\n{calls}" if content else calls}


def _written(call: dict[str, Any]) -> str:
    function = call["function"]
    return _call(*(json.dumps(function[name], ensure_ascii=False) for name in ("name", "arguments")))
