"""The syntax of tool calls with JSON arguments, for grammars."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from json import dumps

from scheduler.answer import harmony
from scheduler.answer.answer_format import AnswerFormat, Layout

NUMBER = "{number}"
"""Placeholder in a head for the call's number, which the model counts."""


@dataclass(frozen=True, slots=True)
class CallSyntax:
    """`opening`, one or more calls with `separator` between them, `closing`. A call is `head(name)`, the
    arguments as a JSON object, `tail`. As the model's template renders earlier calls."""

    head: Callable[[str], str]
    tail: str
    opening: str = ""
    separator: str = ""
    closing: str = ""
    parallel: bool = True
    """Whether an answer can have several calls."""

    @property
    def start(self) -> str:
        """The text with which the calls of an answer begin."""
        return self.opening or self.head("").split('"', 1)[0]


def call_syntax(form: AnswerFormat, has_token: Callable[[str], bool]) -> CallSyntax | None:
    """None if the format's arguments are not JSON, or it has no calls. `has_token`: whether a text is a
    special token of the model."""
    if form.layout is Layout.HARMONY:
        return CallSyntax(
            lambda name: f"<|channel|>commentary to=functions.{name} <|constrain|>json{harmony.MESSAGE}",
            # The end of the call is the end of the turn: a token that ends the answer.
            tail="",
            parallel=False,
        )
    syntax = form.tools
    if form.layout is not Layout.MARKS or syntax is None:
        return None
    match syntax.name:
        case "json_tools" | "generic":
            start, end = syntax.start, syntax.end
            return CallSyntax(
                lambda name: f'{start}\n{{"name": {_json(name)}, "arguments": ', f"}}\n{end}", separator="\n"
            )
        case "mistral" if has_token("[ARGS]"):
            return CallSyntax(lambda name: f"{syntax.start}{name}[ARGS]", tail="")
        case "mistral":
            return CallSyntax(
                lambda name: f'{{"name": {_json(name)}, "arguments": ',
                "}",
                opening=f"{syntax.start}[",
                separator=", ",
                closing="]",
            )
        case "kimi_k2":
            return CallSyntax(
                lambda name: f"<|tool_call_begin|>functions.{name}:{NUMBER}<|tool_call_argument_begin|>",
                "<|tool_call_end|>",
                opening=syntax.start,
                closing=syntax.end,
            )
        case _:
            return None


def _json(name: str) -> str:
    return dumps(name, ensure_ascii=False)
