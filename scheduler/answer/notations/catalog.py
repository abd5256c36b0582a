"""The descriptions of all notations that Penstock reads, by the names of `--tool-parser`.

The facts are from the models' chat templates. What a template does not write, and its models do, is in
`openings`, `strays` and `also`.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from scheduler.answer import harmony
from scheduler.answer.notations.description import (
    BREAK,
    NAME,
    NUMBER,
    TOOL,
    TYPE,
    Braced,
    Elements,
    JsonObject,
    Keywords,
    Notation,
    Tagged,
)

_PLAIN_NAME = r"[\w-]+"
"""A tool's name where anything else would be read otherwise by the models' own tools."""
_IN_QUOTES = r'[^"<>&\s]+'
_DSML = "｜DSML｜"
_JSON_HEAD = f'{{"name": "{TOOL}", "arguments": '
_PARAMETERS_HEAD = f'{{"name": "{TOOL}", "parameters": '

GENERIC = "generic"
"""The name of the notation of models whose template has no tools."""
GENERIC_CALL = ("<tool_call>", "</tool_call>")
GENERIC_RESULT = "<tool_response>"


_QWEN_TAGS = Tagged(
    opening=f"<parameter={NAME}>\n",
    closing="\n</parameter>\n",
    ends=("</parameter>", "</tool_call>"),
    names=r"[^\s<>]+",
)

_QWEN = Notation(
    "qwen3_coder",
    call_start="<tool_call>\n",
    head=f"<function={TOOL}>\n",
    arguments=_QWEN_TAGS,
    tail="</function>\n",
    call_end="</tool_call>",
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
        names=_IN_QUOTES,
    ),
    tail="</invoke>\n",
    closing="</minimax:tool_call>",
    tools=_IN_QUOTES,
)

_M3 = "]<]minimax[>["

_MINIMAX_M3 = Notation(
    "minimax_m3",
    opening=f"{_M3}<tool_call>\n",
    head=f'{_M3}<invoke name="{TOOL}">',
    arguments=Elements(_M3),
    tail=f"{_M3}</invoke>\n",
    closing=f"{_M3}</tool_call>",
)

_MINICPM = Notation(
    "minicpm5",
    head=f'<function name="{TOOL}">',
    arguments=Tagged(
        opening=f'<param name="{NAME}">',
        closing="</param>",
        ends=("</param>", "</function>", "]]>"),
        quoted=("<![CDATA[", "]]>"),
        quoted_for="<&",
        names=_IN_QUOTES,
    ),
    tail="</function>",
    separators=("", "\n"),
    tools=_IN_QUOTES,
)


def _dsml(name: str, word: str, *others: str, space: str = "", also: tuple[Notation, ...] = ()) -> Notation:
    mark = _DSML + space
    return Notation(
        name,
        opening=f"<{mark}{word}>\n",
        head=f'<{mark}invoke name="{TOOL}">\n',
        arguments=Tagged(
            opening=f'<{mark}parameter name="{NAME}" string="true">',
            json_opening=f'<{mark}parameter name="{NAME}" string="false">',
            closing=f"</{mark}parameter>\n",
            ends=(f"</{mark}parameter>", f"</{mark}invoke>", f"</{mark}{word}>"),
            names=r'[^"]+',
        ),
        tail=f"</{mark}invoke>\n",
        closing=f"</{mark}{word}>",
        tools=r'[^"]+',
        openings=tuple(f"<{_DSML}{other}>" for other in others),
        strays=tuple(f"</{_DSML}{other}>" for other in others),
        also=also,
    )


_DSML41 = _dsml("dsml41", "calls", space=" ")
_DSML32 = _dsml("dsml", "function_calls", "tool_calls")
# The others are slips of V4.
_DSML4 = _dsml("dsml4", "tool_calls", "function_calls", "toolcalls", "tool", also=(_DSML41,))


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
        in_json=('<|open|>json type="object"<|sep|>', "<|close|>json<|sep|>"),
        names=_IN_QUOTES,
    ),
    tail="<|close|>call<|sep|>",
    closing="<|close|>tools<|sep|>",
    trails=("", "<|close|>message<|sep|>"),
    tools=_IN_QUOTES,
    strays=("<|close|>message<|sep|>",),
)

_GEMMA4 = Notation(
    "gemma4",
    call_start="<|tool_call>",
    head=f"call:{TOOL}",
    arguments=Braced('<|"|>', ends=('<|"|>', "<tool_call|>", "\0"), names=r"[\w$][\w$.-]*"),
    call_end="<tool_call|>",
    tools=r"[\w./:-]+",
)

_FUNCTION_GEMMA = Notation(
    "function_gemma",
    call_start="<start_function_call>",
    head=f"call:{TOOL}",
    arguments=Braced(
        "<escape>", ends=("<escape>", "}", "<end_function_call>"), nests=False, names=r"[\w$][\w$.-]*"
    ),
    call_end="<end_function_call>",
    tools=r"[\w./:-]+",
)

_PYTHONIC = Notation(
    "pythonic",
    opening="<|tool_call_start|>[",
    head=f"{TOOL}(",
    arguments=Keywords(ends=("<|tool_call_end|>",), names=r"[A-Za-z_$][\w$.-]*"),
    tail=")",
    separators=(", ",),
    closing="]<|tool_call_end|>",
    tools=r"[A-Za-z_][\w.-]*",
)

HARMONY = Notation(
    "harmony",
    head=f"<|channel|>commentary to=functions.{TOOL} <|constrain|>json{harmony.MESSAGE}",
    # The end of the call is the end of the turn: a token that ends the answer.
    arguments=JsonObject(ends=harmony.ENDS),
    parallel=False,
    openings=harmony.BOUNDS,
)

_KIMI_K2 = Notation(
    "kimi_k2",
    opening="<|tool_calls_section_begin|>",
    call_start="<|tool_call_begin|>",
    head=f"functions.{TOOL}:{NUMBER}<|tool_call_argument_begin|>",
    arguments=JsonObject(ends=("<|tool_call_begin|>", "<|tool_call_end|>", "<|tool_calls_section_end|>")),
    call_end="<|tool_call_end|>",
    closing="<|tool_calls_section_end|>",
    openings=("<|tool_call_section_begin|>",),
    strays=("<|tool_call_section_end|>",),
)

MISTRAL_LIST = Notation(
    "mistral",
    opening="[TOOL_CALLS][",
    head=_JSON_HEAD,
    arguments=JsonObject(ends=("[TOOL_CALLS]",)),
    tail="}",
    separators=(", ",),
    closing="]",
    short_ids=True,
)

MISTRAL = Notation(
    "mistral",
    call_start="[TOOL_CALLS]",
    head=f"{TOOL}[ARGS]",
    arguments=JsonObject(ends=("[TOOL_CALLS]",)),
    id_mark="[CALL_ID]",
    short_ids=True,
)

_MUSE = Notation(
    "muse_spark",
    opening="<atem:function_calls>",
    head=f'<atem:invoke name="{TOOL}">',
    arguments=Tagged(
        opening=f'<atem:parameter name="{NAME}">',
        closing="</atem:parameter>",
        ends=("</atem:parameter>",),
        has_json=True,
    ),
    tail="</atem:invoke>",
    closing="</atem:function_calls>",
)


def _hermes(name: str, result_mark: str = "") -> Notation:
    return Notation(
        name,
        call_start="<tool_call>\n",
        head=_JSON_HEAD,
        arguments=JsonObject(ends=("</tool_call>",)),
        tail="}",
        call_end="\n</tool_call>",
        separators=("\n",),
        also=(_QWEN,),
        result_mark=result_mark,
    )


def _listed(name: str, opening: str, closing: str, head: str = _JSON_HEAD, **more: Any) -> Notation:
    """A list of calls in JSON."""
    return Notation(
        name,
        opening=f"{opening}[",
        head=head,
        arguments=JsonObject(ends=(closing,) if closing else ()),
        tail="}",
        separators=(", ",),
        closing=f"]{closing}",
        **more,
    )


def _glm(name: str, prefix: str = "", suffix: str = "") -> Notation:
    """GLM 4.5 and 4.6 write each tag on a line of its own, GLM 4.7 and later write no line breaks."""
    return Notation(
        name,
        call_start=f"<{prefix}tool_call{suffix}>",
        head=f"{TOOL}",
        arguments=Tagged(
            opening=f"<{prefix}arg_key{suffix}>{NAME}</{prefix}arg_key{suffix}>{BREAK}<{prefix}arg_value{suffix}>",
            closing=f"</{prefix}arg_value{suffix}>",
            ends=(f"</{prefix}arg_value{suffix}>", f"</{prefix}tool_call{suffix}>"),
            breaks=("", "\n"),
            names=r"[^<>\s]+",
        ),
        call_end=f"</{prefix}tool_call{suffix}>",
        separators=("", "\n"),
        tools=r"[^<>\s]+",
        also=() if prefix else (_QWEN,),
    )


def _deepseek(name: str, head: str, tail: str, also: tuple[Notation, ...] = ()) -> Notation:
    return Notation(
        name,
        opening="<｜tool▁calls▁begin｜>",
        call_start="<｜tool▁call▁begin｜>",
        head=head,
        arguments=JsonObject(ends=("<｜tool▁call▁end｜>",)),
        tail=tail,
        call_end="<｜tool▁call▁end｜>",
        closing="<｜tool▁calls▁end｜>",
        also=also,
    )


_SEED = replace(
    _QWEN,
    name="seed_oss",
    call_start="<seed:tool_call>\n",
    arguments=replace(
        _QWEN_TAGS,
        opening=f"<parameter={NAME}>",
        closing="</parameter>\n",
        ends=("</parameter>", "</seed:tool_call>"),
    ),
    call_end="</seed:tool_call>",
)


def _hunyuan3(suffix: str) -> Notation:
    return replace(
        _glm("hy_v3", "", suffix),
        opening=f"<tool_calls{suffix}>\n",
        head=f"{TOOL}<tool_sep{suffix}>\n",
        closing=f"</tool_calls{suffix}>",
        call_end=f"</tool_call{suffix}>\n",
        separators=("",),
    )


_HY3 = replace(_hunyuan3(":opensource"), also=(_hunyuan3(""),))

_PYTHON_LIST = Notation(
    "llama4_pythonic",
    opening="[",
    head=f"{TOOL}(",
    arguments=Keywords(ends=(), names=r"[A-Za-z_$][\w$.-]*"),
    tail=")",
    separators=(", ",),
    closing="]",
    bare=True,
    openings=("<|python_start|>", "<|python_tag|>"),
    strays=("<|python_end|>",),
    tools=r"[A-Za-z_][\w.-]*",
)

_LLAMA = Notation(
    "llama3_json",
    head=_PARAMETERS_HEAD,
    arguments=JsonObject(ends=()),
    tail="}",
    separators=("; ",),
    bare=True,
    openings=("<|python_tag|>",),
    also=(replace(_PYTHON_LIST, openings=()), _QWEN),
)

_COMMAND = Notation(
    "cohere",
    opening="<|START_ACTION|>[\n    ",
    head=f'{{"tool_call_id": "{NUMBER}", "tool_name": "{TOOL}", "parameters": ',
    arguments=JsonObject(ends=("<|END_ACTION|>",)),
    tail="}",
    separators=(",\n    ",),
    closing="\n]<|END_ACTION|>",
)

_BY_NAME = {
    notation.name: notation
    for notation in (
        _hermes("json_tools"),
        _hermes(GENERIC, GENERIC_RESULT),
        _QWEN,
        _SEED,
        _glm("glm47"),
        _glm("laguna"),
        _glm("longcat", "longcat_"),
        _HY3,
        _MINIMAX,
        _MINIMAX_M3,
        _MINICPM,
        _DSML32,
        _DSML4,
        _DSML41,
        _deepseek("deepseek_v31", f"{TOOL}<｜tool▁sep｜>", ""),
        _deepseek(
            "deepseek_v3",
            f"function<｜tool▁sep｜>{TOOL}\n```json\n",
            "\n```",
            # What R1 was distilled into writes as its own kind does.
            also=(_deepseek("deepseek_v31", f"{TOOL}<｜tool▁sep｜>", ""), _hermes("json_tools")),
        ),
        _KIMI_K2,
        _KIMI_K3,
        _GEMMA4,
        _FUNCTION_GEMMA,
        _PYTHONIC,
        _PYTHON_LIST,
        _LLAMA,
        MISTRAL,
        _MUSE,
        _COMMAND,
        _listed("command_r", "Action:\n```json\n", "\n```", f'{{"tool_name": "{TOOL}", "parameters": '),
        _listed("apertus", "<|tools_prefix|>", "<|tools_suffix|>", f'{{"{TOOL}": '),
        _listed("granite", "<|tool_call|>", "", openings=("<tool_call>",), strays=("</tool_call>",)),
        _listed("granite_20b", "<function_call>", ""),
        _listed("hunyuan", "<tool_calls>", "</tool_calls>"),
        _listed("jamba", "<tool_calls>", "</tool_calls>"),
        _listed("nemotron_nano", "<TOOLCALL>", "</TOOLCALL>"),
        _listed("phi4_mini", "functools", "", openings=("<|tool_call|>",), strays=("<|/tool_call|>",)),
        _listed(
            "xlam",
            "",
            "",
            bare=True,
            openings=("[TOOL_CALLS]", "<tool_call>", "```json"),
            strays=("</tool_call>", "```"),
        ),
        Notation(
            "internlm2",
            call_start="<|action_start|><|plugin|>\n",
            head=_PARAMETERS_HEAD,
            arguments=JsonObject(ends=("<|action_end|>",)),
            tail="}",
            call_end="<|action_end|>",
            openings=("<|action_start|>",),
        ),
        Notation(
            "gigachat3",
            call_start="function call<|role_sep|>\n",
            head=_JSON_HEAD,
            arguments=JsonObject(ends=("<|message_sep|>",)),
            tail="}",
            openings=("<|function_call|>",),
            strays=("<|message_sep|>",),
            parallel=False,
        ),
        Notation(
            "olmo3",
            opening="<function_calls>\n",
            head=f"{TOOL}(",
            arguments=Keywords(ends=("</function_calls>",), names=r"[A-Za-z_$][\w$.-]*"),
            tail=")",
            separators=("\n",),
            closing="\n</function_calls>",
            tools=r"[A-Za-z_][\w.-]*",
        ),
    )
}

NOTATIONS = tuple(_BY_NAME)

_SIGNS: tuple[tuple[str, tuple[str, ...]], ...] = (
    ("minimax_m2", ("<minimax:tool_call>",)),
    ("minimax_m3", (_M3, "<invoke name=")),
    ("gemma4", ("<|tool_call>", "<tool_call|>")),
    ("function_gemma", ("<start_function_call>",)),
    ("longcat", ("<longcat_tool_call>",)),
    ("seed_oss", ("<seed:tool_call>",)),
    ("hy_v3", ("<arg_key{}>",)),
    ("glm47", ("<arg_key>",)),
    ("dsml41", (f"{_DSML} calls>",)),
    ("dsml4", (_DSML, "tool_calls>")),
    ("dsml", (_DSML,)),
    ("deepseek_v3", ("<｜tool▁calls▁begin｜>", "```json")),
    ("deepseek_v31", ("<｜tool▁calls▁begin｜>",)),
    ("pythonic", ("<|tool_list_start|>",)),
    ("pythonic", ("<|tool_call_start|>",)),
    ("qwen3_coder", ("<tool_call>", "<function=")),
    ("kimi_k2", ("<|tool_calls_section_begin|>",)),
    ("minicpm5", ('<function name="', '<param name="')),
    ("mistral", ("[TOOL_CALLS]",)),
    ("muse_spark", ("<atem:function_calls>",)),
    ("cohere", ("<|START_ACTION|>",)),
    ("command_r", ("'Action:'", "```json")),
    ("command_r", ("Action:\n```json",)),
    ("apertus", ("<|tools_prefix|>",)),
    ("nemotron_nano", ("<TOOLCALL>",)),
    ("internlm2", ("<|action_start|>",)),
    ("phi4_mini", ("functools",)),
    ("phi4_mini", ("<|tool_call|>", "<|/tool_call|>")),
    ("granite", ("<|tool_call|>",)),
    ("granite_20b", ("<function_call>",)),
    ("olmo3", ("<function_calls>",)),
    ("hunyuan", ("<tool_calls>",)),
    ("json_tools", ("<tool_call>",)),
    ("gigachat3", ("function call", "role_sep")),
    ("llama4_pythonic", ("[func_name1(",)),
    ("llama3_json", ("<|python_tag|>",)),
    ("llama3_json", ('"parameters": dictionary of argument name',)),
    ("xlam", ('[{"name": "tool_call_name"',)),
)
"""What a template has that writes or asks for a notation, the first that fits."""


def sign_of(template: str) -> str | None:
    """Return the name of the notation that a chat template writes, if it is known."""
    return next((name for name, signs in _SIGNS if all(sign in template for sign in signs)), None)


def described(name: str) -> Notation:
    """Return the notation with a name."""
    return _BY_NAME[name]
