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
    Keywords,
    Notation,
    Tagged,
)

_BARE_NAME = r"[^\s<>]+"
_QUOTED_NAME = r'[^"<>&\s]+'
_GEMMA_NAME = r"[\w./:-]+"
_PYTHON_NAME = r"[A-Za-z_$][\w$.-]*"
_DSML = "｜DSML｜"
_M3 = "]<]minimax[>["
_JSON_HEAD = f'{{"name": "{TOOL}", "arguments": '
_PARAMETERS_HEAD = f'{{"name": "{TOOL}", "parameters": '
_COMMAND_HEAD = f'{{"tool_name": "{TOOL}", "parameters": '

GENERIC = "generic"
"""The name of the notation of models whose template has no tools."""
GENERIC_CALL = ("<tool_call>", "</tool_call>")
GENERIC_RESULT = "<tool_response>"

HARMONY = Notation(
    "harmony",
    head=f"<|channel|>commentary to=functions.{TOOL} <|constrain|>json{harmony.MESSAGE}",
    # The end of the call is the end of the turn: a token that ends the answer.
    parallel=False,
    openings=harmony.BOUNDS,
)


def _json(name: str, head: str = _JSON_HEAD, **more: Any) -> Notation:
    """Each call an object, with the tool's name in it."""
    return Notation(name, head=head, tail="}", **more)


def _listed(name: str, opening: str, closing: str, head: str = _JSON_HEAD, **more: Any) -> Notation:
    return _json(name, head, opening=f"{opening}[", separators=(", ",), closing=f"]{closing}", **more)


MISTRAL_LIST = _listed("mistral", "[TOOL_CALLS]", "", short_ids=True)
MISTRAL = Notation(
    "mistral",
    call_start="[TOOL_CALLS]",
    head=f"{TOOL}[ARGS]",
    id_mark="[CALL_ID]",
    short_ids=True,
)

_QWEN = Notation(
    "qwen3_coder",
    call_start="<tool_call>\n",
    head=f"<function={TOOL}>\n",
    arguments=Tagged(f"<parameter={NAME}>\n", "\n</parameter>\n"),
    tail="</function>\n",
    call_end="</tool_call>",
    separators=("\n",),
    names=_BARE_NAME,
    signs=(("<tool_call>", "<function="),),
)


def _hermes(name: str, result_mark: str = "") -> Notation:
    return _json(
        name,
        call_start="<tool_call>\n",
        call_end="\n</tool_call>",
        separators=("\n",),
        also=(_QWEN,),
        result_mark=result_mark,
    )


def _invoked(name: str, mark: str, tag: str, *, line: str = "\n", **more: Any) -> Notation:
    """Each call between tags with an attribute. `mark`: what stands in all of them, `tag`: around them."""
    return Notation(
        name,
        opening=f"<{tag}>{line}",
        head=f'<{mark}invoke name="{TOOL}">{line}',
        tail=f"</{mark}invoke>{line}",
        closing=f"</{tag}>",
        **{"names": _QUOTED_NAME, **more},
    )


def _dsml(name: str, word: str, *others: str, space: str = "", **more: Any) -> Notation:
    mark = _DSML + space
    opening = f'<{mark}parameter name="{NAME}" string="true">'
    return _invoked(
        name,
        mark,
        mark + word,
        arguments=Tagged(opening, f"</{mark}parameter>\n", json_opening=opening.replace('"true"', '"false"')),
        names=r'[^"]+',
        openings=tuple(f"<{_DSML}{other}>" for other in others),
        strays=tuple(f"</{_DSML}{other}>" for other in others),
        **more,
    )


_DSML41 = _dsml("dsml41", "calls", space=" ", signs=((f"{_DSML} calls>",),))


def _glm(name: str, prefix: str = "", suffix: str = "", **more: Any) -> Notation:
    """GLM 4.5 and 4.6 write each tag on a line of its own, GLM 4.7 and later write no line breaks."""
    key, value = f"{prefix}arg_key{suffix}", f"{prefix}arg_value{suffix}"
    own: dict[str, Any] = {
        "head": TOOL,
        "call_end": f"</{prefix}tool_call{suffix}>",
        "separators": ("", "\n"),
        "also": () if prefix else (_QWEN,),
        "signs": () if prefix else (("<arg_key>",),),
    }
    return Notation(
        name,
        call_start=f"<{prefix}tool_call{suffix}>",
        arguments=Tagged(f"<{key}>{NAME}</{key}>{BREAK}<{value}>", f"</{value}>", breaks=("", "\n")),
        names=_BARE_NAME,
        **{**own, **more},
    )


def _hunyuan3(suffix: str, **more: Any) -> Notation:
    return _glm(
        "hy_v3",
        suffix=suffix,
        opening=f"<tool_calls{suffix}>\n",
        head=f"{TOOL}<tool_sep{suffix}>\n",
        closing=f"</tool_calls{suffix}>",
        call_end=f"</tool_call{suffix}>\n",
        separators=("",),
        signs=(("<arg_key{}>",),),
        **more,
    )


def _deepseek(name: str, head: str, tail: str = "", **more: Any) -> Notation:
    return Notation(
        name,
        opening="<｜tool▁calls▁begin｜>",
        call_start="<｜tool▁call▁begin｜>",
        head=head,
        tail=tail,
        call_end="<｜tool▁call▁end｜>",
        closing="<｜tool▁calls▁end｜>",
        **more,
    )


_DEEPSEEK31 = _deepseek("deepseek_v31", f"{TOOL}<｜tool▁sep｜>")


def _gemma(name: str, start: str, end: str, arguments: Braced) -> Notation:
    return Notation(
        name,
        call_start=start,
        head=f"call:{TOOL}",
        arguments=arguments,
        call_end=end,
        names=_GEMMA_NAME,
    )


def _python(name: str, opening: str, closing: str, separator: str = ", ", **more: Any) -> Notation:
    return Notation(
        name,
        opening=opening,
        head=f"{TOOL}(",
        arguments=Keywords(),
        tail=")",
        separators=(separator,),
        closing=closing,
        names=_PYTHON_NAME,
        **more,
    )


_PYTHON_LIST = _python("llama4_pythonic", "[", "]", bare=True, signs=(("[func_name1(",),))

_ALL = (
    _invoked(
        "minimax_m2",
        "",
        "minimax:tool_call",
        arguments=Tagged(f'<parameter name="{NAME}">', "</parameter>\n"),
    ),
    Notation(
        "minimax_m3",
        opening=f"{_M3}<tool_call>\n",
        head=f'{_M3}<invoke name="{TOOL}">',
        arguments=Elements(_M3),
        tail=f"{_M3}</invoke>\n",
        closing=f"{_M3}</tool_call>",
        signs=((_M3, "<invoke name="),),
    ),
    _gemma("gemma4", "<|tool_call>", "<tool_call|>", Braced('<|"|>')),
    _gemma("function_gemma", "<start_function_call>", "<end_function_call>", Braced("<escape>", nests=False)),
    _glm("longcat", "longcat_"),
    replace(
        _QWEN,
        name="seed_oss",
        call_start="<seed:tool_call>\n",
        arguments=Tagged(f"<parameter={NAME}>", "</parameter>\n"),
        call_end="</seed:tool_call>",
        signs=(),
    ),
    _hunyuan3(":opensource", also=(_hunyuan3("", also=()),)),
    _glm("glm47"),
    _glm("laguna"),
    _DSML41,
    # The other words are slips of V4.
    _dsml(
        "dsml4",
        *("tool_calls", "function_calls", "toolcalls", "tool"),
        also=(_DSML41,),
        signs=((_DSML, "tool_calls>"),),
    ),
    _dsml("dsml", "function_calls", "tool_calls", signs=((_DSML,),)),
    _deepseek(
        "deepseek_v3",
        f"function<｜tool▁sep｜>{TOOL}\n```json\n",
        "\n```",
        # What R1 was distilled into writes as its own kind does.
        also=(_DEEPSEEK31, _hermes("json_tools")),
        signs=(("<｜tool▁calls▁begin｜>", "```json"),),
    ),
    _DEEPSEEK31,
    _python(
        "pythonic",
        "<|tool_call_start|>[",
        "]<|tool_call_end|>",
        signs=(("<|tool_list_start|>",), ("<|tool_call_start|>",)),
    ),
    _QWEN,
    Notation(
        "kimi_k2",
        opening="<|tool_calls_section_begin|>",
        call_start="<|tool_call_begin|>",
        head=f"functions.{TOOL}:{NUMBER}<|tool_call_argument_begin|>",
        call_end="<|tool_call_end|>",
        closing="<|tool_calls_section_end|>",
        openings=("<|tool_call_section_begin|>",),
        strays=("<|tool_call_section_end|>",),
    ),
    Notation(
        "kimi_k3",
        around_text=("<|open|>response<|sep|>", "<|close|>response<|sep|>"),
        opening="<|open|>tools<|sep|>",
        head=f'<|open|>call tool="{TOOL}" index="{NUMBER}"<|sep|>',
        arguments=Tagged(
            f'<|open|>argument key="{NAME}" type="string"<|sep|>',
            "<|close|>argument<|sep|>",
            json_opening=f'<|open|>argument key="{NAME}" type="{TYPE}"<|sep|>',
            in_json=('<|open|>json type="object"<|sep|>', "<|close|>json<|sep|>"),
        ),
        tail="<|close|>call<|sep|>",
        closing="<|close|>tools<|sep|>",
        trails=("", "<|close|>message<|sep|>"),
        names=_QUOTED_NAME,
        strays=("<|close|>message<|sep|>",),
    ),
    Notation(
        "minicpm5",
        head=f'<function name="{TOOL}">',
        arguments=Tagged(f'<param name="{NAME}">', "</param>", quoted=("<![CDATA[", "]]>"), quoted_for="<&"),
        tail="</function>",
        separators=("", "\n"),
        names=_QUOTED_NAME,
        signs=(('<function name="', '<param name="'),),
    ),
    MISTRAL,
    _invoked(
        "muse_spark",
        "atem:",
        "atem:function_calls",
        line="",
        arguments=Tagged(f'<atem:parameter name="{NAME}">', "</atem:parameter>", has_json=True),
    ),
    Notation(
        "cohere",
        f'{{"tool_call_id": "{NUMBER}", "tool_name": "{TOOL}", "parameters": ',
        tail="}",
        opening="<|START_ACTION|>[\n    ",
        separators=(",\n    ",),
        closing="\n]<|END_ACTION|>",
    ),
    _listed(
        "command_r",
        "Action:\n```json\n",
        "\n```",
        _COMMAND_HEAD,
        signs=(("'Action:'", "```json"), ("Action:\n```json",)),
    ),
    _listed("apertus", "<|tools_prefix|>", "<|tools_suffix|>", f'{{"{TOOL}": '),
    _listed("nemotron_nano", "<TOOLCALL>", "</TOOLCALL>"),
    _json(
        "internlm2",
        _PARAMETERS_HEAD,
        call_start="<|action_start|><|plugin|>\n",
        call_end="<|action_end|>",
        openings=("<|action_start|>",),
        signs=(("<|action_start|>",),),
    ),
    _listed(
        "phi4_mini",
        "functools",
        "",
        openings=("<|tool_call|>",),
        strays=("<|/tool_call|>",),
        signs=(("functools",), ("<|tool_call|>", "<|/tool_call|>")),
    ),
    _listed("granite", "<|tool_call|>", "", openings=("<tool_call>",), strays=("</tool_call>",)),
    _listed("granite_20b", "<function_call>", ""),
    _python("olmo3", "<function_calls>\n", "\n</function_calls>", "\n"),
    _listed("hunyuan", "<tool_calls>", "</tool_calls>"),
    _listed("jamba", "<tool_calls>", "</tool_calls>"),
    _hermes("json_tools"),
    _hermes(GENERIC, GENERIC_RESULT),
    _json(
        "gigachat3",
        call_start="function call<|role_sep|>\n",
        openings=("<|function_call|>",),
        strays=("<|message_sep|>",),
        parallel=False,
        signs=(("function call", "role_sep"),),
    ),
    replace(_PYTHON_LIST, openings=("<|python_start|>", "<|python_tag|>"), strays=("<|python_end|>",)),
    _json(
        "llama3_json",
        _PARAMETERS_HEAD,
        separators=("; ",),
        bare=True,
        openings=("<|python_tag|>",),
        also=(replace(_PYTHON_LIST, strays=("<|python_end|>",)), _QWEN),
        signs=(("<|python_tag|>",), ('"parameters": dictionary of argument name',)),
    ),
    _listed(
        "xlam",
        "",
        "",
        bare=True,
        openings=("[TOOL_CALLS]", "<tool_call>", "```json"),
        strays=("</tool_call>", "```"),
        signs=(('[{"name": "tool_call_name"',),),
    ),
)
"""In the order in which templates show them: the first that fits."""
_BY_NAME = {notation.name: notation for notation in _ALL}

NOTATIONS = tuple(_BY_NAME)
tool_syntax = _BY_NAME.__getitem__


def sign_of(template: str) -> str | None:
    for one in _ALL:
        if any(all(sign in template for sign in signs) for signs in one.signs or ((one.start,),)):
            return one.name
    return None
