"""The descriptions of all notations that Penstock reads.

The facts are from the models' chat templates and from mlx-lm's parsers, which decide what a call means.
"""

from __future__ import annotations

from collections.abc import Callable

from scheduler.answer import harmony
from scheduler.answer.answer_format import AnswerFormat, Layout
from scheduler.answer.notations.description import (
    BREAK,
    NAME,
    NUMBER,
    TOOL,
    TYPE,
    Braced,
    JsonObject,
    Keywords,
    Notation,
    Tagged,
    Unheld,
)

_PLAIN_NAME = r"[\w-]+"
"""A tool's name in a parser that matches word characters only."""
_IN_QUOTES = r'[^"<>&\s]+'
_DSML = "｜DSML｜"

_QWEN = Notation(
    "qwen3_coder",
    head=f"<tool_call>\n<function={TOOL}>\n",
    arguments=Tagged(
        opening=f"<parameter={NAME}>\n",
        closing="\n</parameter>\n",
        ends=("</parameter>", "</tool_call>"),
        has_null_word=True,
        names=r"[^\s<>]+",
    ),
    tail="</function>\n</tool_call>",
    separators=("\n",),
    tools=r"[^\s<>]+",
)

_MINIMAX = Notation(
    "minimax_m2",
    opening="<minimax:tool_call>\n",
    head=f'<invoke name="{TOOL}">\n',
    arguments=Tagged(
        opening=f'<parameter name="{NAME}">',
        closing="</parameter>\n",
        ends=("</parameter>", "</invoke>", "</minimax:tool_call>"),
        trims=True,
        has_null_word=True,
        names=_IN_QUOTES,
    ),
    tail="</invoke>\n",
    closing="</minimax:tool_call>",
    tools=_IN_QUOTES,
)

_MINICPM = Notation(
    "minicpm5",
    head=f'<function name="{TOOL}">',
    arguments=Tagged(
        opening=f'<param name="{NAME}">',
        closing="</param>",
        ends=("</param>", "</function>", "]]>"),
        has_null_word=True,
        quoted=("<![CDATA[", "]]>"),
        quoted_for="<&",
        names=_IN_QUOTES,
    ),
    tail="</function>",
    separators=("", "\n"),
    tools=_IN_QUOTES,
)

_DEEPSEEK = Notation(
    "dsml",
    opening=f"<{_DSML}function_calls>\n",
    head=f'<{_DSML}invoke name="{TOOL}">\n',
    arguments=Tagged(
        opening=f'<{_DSML}parameter name="{NAME}" string="true">',
        json_opening=f'<{_DSML}parameter name="{NAME}" string="false">',
        closing=f"</{_DSML}parameter>\n",
        ends=(f"</{_DSML}parameter>", f"</{_DSML}invoke>", f"</{_DSML}function_calls>"),
        names=r'[^"]+',
    ),
    tail=f"</{_DSML}invoke>\n",
    closing=f"</{_DSML}function_calls>",
    tools=r'[^"]+',
)

_KIMI_K3 = Notation(
    "kimi_k3",
    around_text=("<|open|>response<|sep|>", "<|close|>response<|sep|>"),
    opening="<|open|>tools<|sep|>",
    head=f'<|open|>call tool="{TOOL}" index="{NUMBER}"<|sep|>',
    arguments=Tagged(
        opening=f'<|open|>argument key="{NAME}" type="string"<|sep|>',
        json_opening=f'<|open|>argument key="{NAME}" type="{TYPE}"<|sep|>',
        closing="<|close|>argument<|sep|>",
        ends=tuple(f"<|close|>{tag}<|sep|>" for tag in ("argument", "call", "tools", "json")),
        names=_IN_QUOTES,
    ),
    tail="<|close|>call<|sep|>",
    closing="<|close|>tools<|sep|>",
    trails=("", "<|close|>message<|sep|>"),
    tools=_IN_QUOTES,
)

_GEMMA4 = Notation(
    "gemma4",
    head=f"<|tool_call>call:{TOOL}",
    # The parser's own placeholders for strings are between null characters.
    arguments=Braced('<|"|>', ends=('<|"|>', "<tool_call|>", "\0"), names=r"\w+"),
    tail="<tool_call|>",
    tools=_PLAIN_NAME,
)

_FUNCTION_GEMMA = Notation(
    "function_gemma",
    head=f"<start_function_call>call:{TOOL}",
    arguments=Braced("<escape>", ends=("<escape>", "}", "<end_function_call>"), nests=False, names=r"[\w-]+"),
    tail="<end_function_call>",
    tools=r"\w+",
)

_PYTHONIC = Notation(
    "pythonic",
    opening="<|tool_call_start|>[",
    head=f"{TOOL}(",
    arguments=Keywords(ends=("<|tool_call_end|>",), names=r"[A-Za-z_]\w*"),
    tail=")",
    separators=(", ",),
    closing="]<|tool_call_end|>",
    tools=r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*",
)

_HARMONY = Notation(
    "harmony",
    head=f"<|channel|>commentary to=functions.{TOOL} <|constrain|>json{harmony.MESSAGE}",
    arguments=JsonObject(ends=harmony.ENDS),
    # The end of the call is the end of the turn: a token that ends the answer.
    tail="",
    parallel=False,
)

_KIMI_K2 = Notation(
    "kimi_k2",
    opening="<|tool_calls_section_begin|>",
    head=f"<|tool_call_begin|>functions.{TOOL}:{NUMBER}<|tool_call_argument_begin|>",
    arguments=JsonObject(ends=("<|tool_call_begin|>", "<|tool_call_end|>", "<|tool_calls_section_end|>")),
    tail="<|tool_call_end|>",
    closing="<|tool_calls_section_end|>",
)

_MISTRAL = Notation(
    "mistral", head=f"[TOOL_CALLS]{TOOL}[ARGS]", arguments=JsonObject(ends=("[TOOL_CALLS]",)), tail=""
)

_MISTRAL_LIST = Notation(
    "mistral",
    opening="[TOOL_CALLS][",
    head=f'{{"name": "{TOOL}", "arguments": ',
    arguments=JsonObject(ends=("[TOOL_CALLS]",)),
    tail="}",
    separators=(", ",),
    closing="]",
)


def _hermes(name: str) -> Notation:
    return Notation(
        name,
        head=f'<tool_call>\n{{"name": "{TOOL}", "arguments": ',
        arguments=JsonObject(ends=("</tool_call>",)),
        tail="}\n</tool_call>",
        separators=("\n",),
    )


def _glm(name: str, prefix: str = "", without_parameters: str | None = None) -> Notation:
    """GLM 4.5 and 4.6 write each tag on a line of its own, GLM 4.7 and later write no line breaks."""
    return Notation(
        name,
        head=f"<{prefix}tool_call>{TOOL}",
        arguments=Tagged(
            opening=f"<{prefix}arg_key>{NAME}</{prefix}arg_key>{BREAK}<{prefix}arg_value>",
            closing=f"</{prefix}arg_value>",
            ends=(f"</{prefix}arg_value>", f"</{prefix}tool_call>"),
            breaks=("", "\n"),
            trims=True,
            without_parameters=without_parameters,
            names=r"[^<>\s]+",
        ),
        tail=f"</{prefix}tool_call>",
        separators=("", "\n"),
        tools=r"[^<>\s]+",
    )


_BY_NAME = {
    notation.name: notation
    for notation in (
        _hermes("json_tools"),
        _hermes("generic"),
        _QWEN,
        _glm("glm47"),
        _glm("laguna"),
        # Its parser reads a call without parameters only as JSON.
        _glm(
            "longcat",
            "longcat_",
            f'<longcat_tool_call>{{"name": "{TOOL}", "arguments": {{}}}}</longcat_tool_call>',
        ),
        _MINIMAX,
        _MINICPM,
        _DEEPSEEK,
        _KIMI_K2,
        _KIMI_K3,
        _GEMMA4,
        _FUNCTION_GEMMA,
        _PYTHONIC,
    )
}


def notation_of(form: AnswerFormat, has_token: Callable[[str], bool]) -> Notation | Unheld | None:
    """Return the notation of a model's calls; None if the model has none. `has_token`: whether a text is a
    special token of the model."""
    if form.layout is Layout.HARMONY:
        return _HARMONY
    if form.tools is None:
        return None
    name = form.tools.name
    if form.layout is Layout.MUSE_SPARK:
        return Unheld(name, "names the tool both in a message header and in the call")
    if name == "mistral":
        return _MISTRAL if has_token("[ARGS]") else _MISTRAL_LIST
    return _BY_NAME.get(name) or Unheld(name, "is not described in scheduler/answer/notations")


def described(name: str) -> Notation | None:
    """Return the notation that the name of a parser alone decides."""
    return _BY_NAME.get(name)


def writes_bare_text(name: str) -> bool:
    """Return whether the text of a parameter alone does not decide if it is a string or JSON."""
    notation = _BY_NAME.get(name)
    return (
        notation is not None and isinstance(notation.arguments, Tagged) and not notation.arguments.is_flagged
    )
