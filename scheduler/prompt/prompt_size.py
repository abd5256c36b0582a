"""How much text a prompt is, before it is rendered."""

from __future__ import annotations

from typing import Any, assert_never

from scheduler.request import ChatPrompt, Prompt, TextPrompt, TokenPrompt

LARGE_CHARACTERS = 1 << 18
"""Tokenizing takes 100 to 200 bytes for each byte of text. Up to here every core may have one at a time;
beyond, there is one for all of them."""


QUICK_VALUES = 2048
"""So many are counted in half a millisecond."""


def is_large(prompt: Prompt, max_values: int | None = None) -> bool | None:
    """Whether there are more than `LARGE_CHARACTERS` to be tokenized; None where more than `max_values`
    values must be looked at to tell."""
    match prompt:
        case TokenPrompt():
            return False
        case TextPrompt(text=text):
            return len(text) > LARGE_CHARACTERS
        case ChatPrompt():
            tools = [tool.definition() for tool in prompt.offered_tools]
            return _is_large([*prompt.messages, *tools, prompt.template_options], max_values)
        case _:
            assert_never(prompt)


def _is_large(values: list[Any], max_values: int | None) -> bool | None:
    """JSON values: a string has its length, and anything has at least one character."""
    characters = seen = 0
    while values and characters <= LARGE_CHARACTERS:
        if seen == max_values:
            return None
        seen += 1
        match values.pop():
            case str() as text:
                characters += len(text)
            case dict() as members:
                values.extend(members)
                values.extend(members.values())
            case list() | tuple() as members:
                values.extend(members)
        characters += 1
    return characters > LARGE_CHARACTERS
