"""Calls as the chat templates of each notation render those of earlier turns: written by hand from the
templates, not from the descriptions that the readers are made of."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

Arguments: TypeAlias = Mapping[str, Any]
Call: TypeAlias = tuple[str, Arguments]

_D = "｜DSML｜"


def dumps(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)


def bare(value: Any) -> str:
    """A string as it is, anything else as JSON: what most templates with tags do."""
    return value if isinstance(value, str) else dumps(value)


def _qwen3_coder(name: str, arguments: Arguments) -> str:
    inside = "".join(f"<parameter={key}>\n{bare(value)}\n</parameter>\n" for key, value in arguments.items())
    return f"<tool_call>\n<function={name}>\n{inside}</function>\n</tool_call>"


def _glm(prefix: str, line: str) -> Callable[[str, Arguments], str]:
    def render(name: str, arguments: Arguments) -> str:
        inside = "".join(
            f"<{prefix}arg_key>{key}</{prefix}arg_key>{line}<{prefix}arg_value>{bare(value)}</{prefix}arg_value>{line}"
            for key, value in arguments.items()
        )
        return f"<{prefix}tool_call>{name}{line}{inside}</{prefix}tool_call>"

    return render


def _minimax(name: str, arguments: Arguments) -> str:
    inside = "".join(
        f'<parameter name="{key}">{bare(value)}</parameter>\n' for key, value in arguments.items()
    )
    return f'<invoke name="{name}">\n{inside}</invoke>\n'


def _minicpm5(name: str, arguments: Arguments) -> str:
    def value_text(value: Any) -> str:
        text = bare(value)
        quoted = isinstance(value, str) and (text != text.strip() or any(c in text for c in "<&\n"))
        return f"<![CDATA[{text}]]>" if quoted else text

    inside = "".join(f'<param name="{key}">{value_text(value)}</param>' for key, value in arguments.items())
    return f'<function name="{name}">{inside}</function>'


def _dsml(name: str, arguments: Arguments) -> str:
    inside = "".join(
        f'<{_D}parameter name="{key}" string="{"true" if isinstance(value, str) else "false"}">{bare(value)}'
        f"</{_D}parameter>\n"
        for key, value in arguments.items()
    )
    return f'<{_D}invoke name="{name}">\n{inside}</{_D}invoke>\n'


_JSON_TYPES = {str: "string", bool: "boolean", int: "number", float: "number", list: "array", dict: "object"}


def _kimi_k3(name: str, arguments: Arguments) -> str:
    inside = "".join(
        f'<|open|>argument key="{key}" type="{_JSON_TYPES.get(type(value), "null")}"<|sep|>{bare(value)}'
        "<|close|>argument<|sep|>"
        for key, value in arguments.items()
    )
    return f'<|open|>call tool="{name}" index="1"<|sep|>{inside}<|close|>call<|sep|>'


def _braced(mark: str) -> Callable[[Any], str]:
    def text(value: Any) -> str:
        if isinstance(value, str):
            return mark + value + mark
        if isinstance(value, dict):
            return "{" + ",".join(f"{key}:{text(inner)}" for key, inner in value.items()) + "}"
        if isinstance(value, list):
            return "[" + ",".join(map(text, value)) + "]"
        return dumps(value)

    return text


def _gemma(start: str, end: str, mark: str) -> Callable[[str, Arguments], str]:
    return lambda name, arguments: f"{start}call:{name}{_braced(mark)(dict(arguments))}{end}"


def _pythonic(quote: Callable[[Any], str]) -> Callable[[str, Arguments], str]:
    def render(name: str, arguments: Arguments) -> str:
        return f"{name}({', '.join(f'{key}={quote(value)}' for key, value in arguments.items())})"

    return render


def _kimi_k2(name: str, arguments: Arguments) -> str:
    head = f"<|tool_call_begin|>functions.{name}:0<|tool_call_argument_begin|>"
    return f"{head}{dumps(arguments)}<|tool_call_end|>"


def _hermes(name: str, arguments: Arguments) -> str:
    return f'<tool_call>\n{{"name": "{name}", "arguments": {dumps(arguments)}}}\n</tool_call>'


@dataclass(frozen=True)
class Template:
    """`ends`: what a string cannot contain in this notation."""

    parser: str
    call: Callable[[str, Arguments], str]
    ends: Sequence[str]
    opening: str = ""
    separator: str = ""
    closing: str = ""
    nests: bool = True
    """Whether mlx-lm's parser reads objects and arrays."""
    confuses: Sequence[str] = ()
    """What in a string confuses mlx-lm's parser, and not this server's reader."""

    def render(self, calls: Sequence[Call]) -> str:
        return self.opening + self.separator.join(self.call(*call) for call in calls) + self.closing


TEMPLATES = {
    "json_tools": Template("json_tools", _hermes, (), separator="\n"),
    "qwen3_coder": Template("qwen3_coder", _qwen3_coder, ("</parameter>", "</tool_call>"), separator="\n"),
    "glm47": Template("glm47", _glm("", ""), ("</arg_value>", "</tool_call>")),
    "glm45": Template("glm47", _glm("", "\n"), ("</arg_value>", "</tool_call>"), separator="\n"),
    "longcat": Template("longcat", _glm("longcat_", "\n"), ("</longcat_arg_value>", "</longcat_tool_call>")),
    "minimax_m2": Template(
        "minimax_m2",
        _minimax,
        ("</parameter>", "</minimax:tool_call>"),
        opening="<minimax:tool_call>\n",
        closing="</minimax:tool_call>",
        confuses=("</invoke>",),
    ),
    "minicpm5": Template("minicpm5", _minicpm5, ("</param>", "</function>", "]]>")),
    "dsml": Template(
        "dsml",
        _dsml,
        (f"</{_D}parameter>", f"</{_D}function_calls>"),
        opening=f"<{_D}function_calls>\n",
        closing=f"</{_D}function_calls>",
    ),
    "kimi_k3": Template(
        "kimi_k3",
        _kimi_k3,
        ("<|close|>argument<|sep|>", "<|close|>tools<|sep|>"),
        opening="<|open|>tools<|sep|>",
        closing="<|close|>tools<|sep|>",
    ),
    "gemma4": Template("gemma4", _gemma("<|tool_call>", "<tool_call|>", '<|"|>'), ('<|"|>', "<tool_call|>")),
    "function_gemma": Template(
        "function_gemma",
        _gemma("<start_function_call>", "<end_function_call>", "<escape>"),
        ("<escape>", "<end_function_call>"),
        nests=False,
        confuses=("}",),
    ),
    "pythonic": Template(
        "pythonic",
        _pythonic(dumps),
        (),
        opening="<|tool_call_start|>[",
        separator=", ",
        closing="]<|tool_call_end|>",
    ),
    "pythonic-repr": Template(
        "pythonic",
        _pythonic(repr),
        ("\0", "\x7f"),
        opening="<|tool_call_start|>[",
        separator=", ",
        closing="]<|tool_call_end|>",
    ),
    "kimi_k2": Template(
        "kimi_k2",
        _kimi_k2,
        (),
        opening="<|tool_calls_section_begin|>",
        closing="<|tool_calls_section_end|>",
    ),
    "mistral": Template("mistral", lambda name, arguments: f"[TOOL_CALLS]{name}[ARGS]{dumps(arguments)}", ()),
    "mistral-list": Template(
        "mistral",
        lambda name, arguments: f'{{"name": "{name}", "arguments": {dumps(arguments)}}}',
        (),
        opening="[TOOL_CALLS][",
        separator=", ",
        closing="]",
    ),
}
