"""Families of models that are played: each writes an agent's ten answers in its own notation, and its chat
template writes them again in the next prompt. The templates are the families' own, in short."""

# ruff: noqa: E501 (a family's call on one line)
from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from jinja2 import Environment

_JINJA = Environment(autoescape=False, keep_trailing_newline=True)
_JINJA.filters["tojson"] = lambda value: json.dumps(value, ensure_ascii=False)

_BARE = "{{ v if v is string else v | tojson }}"


def _each(inside: str, separator: str = "") -> str:
    """What is written of each argument `k` with its value `v`."""
    last = f"{{{{ '' if loop.last else '{separator}' }}}}" if separator else ""
    return f"{{% for k, v in c.arguments.items() %}}{inside}{last}{{% endfor %}}"


@dataclass(frozen=True, slots=True)
class Family:
    """`call`: what the template writes of a call's function `c`, with its `id`. `special`: which of its marks
    are special tokens, with white space between them."""

    call: str
    opening: str = ""
    separator: str = ""
    closing: str = ""
    thoughts: tuple[str, str] | None = ("<think>\n", "\n</think>\n\n")
    special: str = ""
    text: tuple[str, str] = ("", "")
    gap: str = "\n"
    """What stands between text and calls."""
    parallel: bool = True
    ids: str = ""
    """How the model writes its calls' ids, by name and number."""
    result: str = "{{ m.content }}"
    turns: tuple[str, str, str] = (
        "<|im_start|>{{ m.role }}{{ '\\n' }}",
        "<|im_end|>",
        "<|im_start|>assistant{{ '\\n' }}",
    )
    """What stands before a message, behind it, and before an answer."""
    macros: str = ""
    whole: str = ""
    """All of an answer `m`, where its parts do not stand in this order."""
    kept: str = ""
    """The same with its end as the template writes it, where that differs."""
    asks: str = ""
    """What its template says of calls, where only that shows the notation."""

    @property
    def answer(self) -> str:
        before, behind = self.thoughts or ("", "")
        thoughts = f"{{% if m.reasoning_content %}}{before}{{{{ m.reasoning_content }}}}{behind}{{% endif %}}"
        text = f"{{% if m.content %}}{self.text[0]}{{{{ m.content }}}}{self.text[1]}{{% endif %}}"
        each = f"{{% set c, id = call.function, call.id %}}{self.call}"
        calls = (
            f"{{% if m.tool_calls %}}{{{{ {self.gap!r} if m.content else '' }}}}{{{{ {self.opening!r} }}}}"
            f"{{% for call in m.tool_calls %}}{{{{ '' if loop.first else {self.separator!r} }}}}{each}{{% endfor %}}"
            f"{{{{ {self.closing!r} }}}}{{% endif %}}"
        )
        return self.whole or f"{thoughts if self.thoughts else ''}{text}{calls}"

    @property
    def template(self) -> str:
        before, behind, opens = self.turns
        system = before.replace("m.role", "'system'")
        return (
            f"{self.macros}{{% if tools %}}{system}{self.asks}"
            f"{{% for t in tools %}}{{{{ t | tojson }}}} {{% endfor %}}{behind}{{% endif %}}{{% for m in messages %}}"
            f"{{% if m.role == 'assistant' %}}{opens}{self.kept or self.answer + behind}{{% elif m.role == 'tool' %}}{before}"
            f"{self.result}{behind}{{% else %}}{before}{{{{ m.content }}}}{behind}{{% endif %}}{{% endfor %}}"
            f"{{% if add_generation_prompt %}}{opens}{{% endif %}}"
        )

    def written(self, message: Mapping[str, Any]) -> str:
        """Return what the model writes, up to its end of turn."""
        return self._rendered(self.answer, message)

    def remembered(self, message: Mapping[str, Any]) -> str:
        """Return the same as the next prompt has it."""
        if not self.kept:
            return self._rendered(self.answer + self.turns[1], message)
        parts = [text for text in (message["reasoning_content"], message["content"]) if text]
        both = (
            {"thinking": "\n\n".join(parts), "content": ""}
            if message["tool_calls"]
            else {"thinking": parts[0]}
        )
        return self._rendered(self.kept, {**message, **both})

    def _rendered(self, answer: str, message: Mapping[str, Any]) -> str:
        return _JINJA.from_string(self.macros + answer).render(m=message)

    @property
    def marks(self) -> str:
        """All marks of a call, as a file may have them."""
        call = self.written({"tool_calls": [{"id": "x", "function": {"name": "n", "arguments": {"k": "v"}}}]})
        return " or ".join(dict.fromkeys(re.findall(r"<[^<>]+>|\[/?[A-Z_]+\]|\]<\]\w+\[>\[", call)))


_HERMES = '<tool_call>\n{"name": "{{ c.name }}", "arguments": {{ c.arguments | tojson }}}\n</tool_call>'
_PAIR = '{"name": "{{ c.name }}", "arguments": {{ c.arguments | tojson }}}'
_QWEN = (
    "<function={{ c.name }}>\n" + _each(f"<parameter={{{{ k }}}}>\n{_BARE}\n</parameter>\n") + "</function>"
)


def _glm(line: str, suffix: str = "", prefix: str = "") -> str:
    p, s = prefix, suffix
    pair = f"<{p}arg_key{s}>{{{{ k }}}}</{p}arg_key{s}>{line}<{p}arg_value{s}>{_BARE}</{p}arg_value{s}>{line}"
    return f"<{p}tool_call{s}>{{{{ c.name }}}}{line}{_each(pair)}</{p}tool_call{s}>"


_D = "｜DSML｜"


def _dsml(word: str) -> tuple[str, str, str]:
    parameter = f"<{_D}parameter name=\"{{{{ k }}}}\" string=\"{{{{ 'true' if v is string else 'false' }}}}\">{_BARE}</{_D}parameter>\n"
    call = f'<{_D}invoke name="{{{{ c.name }}}}">\n{_each(parameter)}</{_D}invoke>\n'
    return call, f"<{_D}{word}>\n", f"</{_D}{word}>"


_K3_TYPE = "{{ 'string' if v is string else 'boolean' if v is boolean else 'number' if v is number else 'null' if v is none else 'object' if v is mapping else 'array' }}"
_K3 = (
    '<|open|>call tool="{{ c.name }}" index="{{ loop.index }}"<|sep|>{% for k, v in c.arguments.items() %}<|open|>argument key="{{ k }}" type="'
    + _K3_TYPE
    + '"<|sep|>'
    + _BARE
    + "<|close|>argument<|sep|>{% endfor %}<|close|>call<|sep|>"
)
_M3 = "]<]minimax[>["
_M3_MACRO = (
    "{% macro el(v) %}{% if v is mapping %}{% for a, b in v.items() %}"
    + _M3
    + "<{{ a }}>{{ el(b) }}"
    + _M3
    + "</{{ a }}>{% endfor %}"
    "{% elif v is sequence and v is not string %}{% for b in v %}"
    + _M3
    + "<item>{{ el(b) }}"
    + _M3
    + "</item>{% endfor %}"
    "{% else %}" + _BARE + "{% endif %}{% endmacro %}"
)
_M3_CALL = _M3 + '<invoke name="{{ c.name }}">{{ el(c.arguments) }}' + _M3 + "</invoke>\n"
_BRACED = (
    "{% macro br(v) %}{% if v is mapping %}{{ '{' }}{% for a, b in v.items() %}{{ a }}:{{ br(b) }}{{ '' if loop.last else ',' }}{% endfor %}{{ '}' }}"
    "{% elif v is string %}MARK{{ v }}MARK{% elif v is sequence %}[{% for b in v %}{{ br(b) }}{{ '' if loop.last else ',' }}{% endfor %}]"
    "{% else %}{{ v | tojson }}{% endif %}{% endmacro %}"
)
_PYTHON = "{{ c.name }}(" + _each("{{ k }}={{ v | tojson }}", ", ") + ")"
_THINK = ("<think>", "</think>")

_START = "<|start|>assistant"
_SPOKEN = (
    "{% if m.reasoning_content %}<|channel|>analysis<|message|>{{ m.reasoning_content }}<|end|>"
    + _START
    + "{% endif %}"
    "{% if m.tool_calls %}{% if m.content %}<|channel|>commentary<|message|>{{ m.content }}<|end|>"
    + _START
    + "{% endif %}"
    "{% set c = m.tool_calls[0].function %}<|channel|>commentary to=functions.{{ c.name }} <|constrain|>json<|message|>"
    "{{ c.arguments | tojson }}{% else %}<|channel|>final<|message|>{{ m.content }}{% endif %}"
)
_KEPT = (
    "{% if m.tool_calls %}{% if m.content and m.thinking %}{{ raise_exception('Cannot pass both') }}{% endif %}"
    "{% if m.content or m.thinking %}<|channel|>analysis<|message|>{{ m.content or m.thinking }}<|end|>"
    + _START
    + "{% endif %}"
    "{% set c = m.tool_calls[0].function %} to=functions.{{ c.name }}<|channel|>commentary json<|message|>"
    "{{ c.arguments | tojson }}<|call|>{% else %}{% if m.thinking %}<|channel|>analysis<|message|>{{ m.thinking }}<|end|>"
    + _START
    + "{% endif %}<|channel|>final<|message|>{{ m.content }}<|end|>{% endif %}"
)

FAMILIES = {
    "Qwen 3": Family(_HERMES, separator="\n"),
    "Qwen 3 Coder": Family(f"<tool_call>\n{_QWEN}\n</tool_call>", separator="\n", thoughts=None),
    "Qwen 3.5, Nemotron 3, Step 3.5": Family(f"<tool_call>\n{_QWEN}\n</tool_call>", separator="\n"),
    "GLM 4.5": Family(_glm("\n"), separator="\n", thoughts=_THINK),
    "GLM 4.7": Family(_glm(""), thoughts=_THINK),
    "Kimi K2": Family(
        "<|tool_call_begin|>{{ id }}<|tool_call_argument_begin|>{{ c.arguments | tojson }}<|tool_call_end|>",
        "<|tool_calls_section_begin|>",
        "",
        "<|tool_calls_section_end|>",
        _THINK,
        ids="functions.{}:{}",
        special="<|tool_calls_section_begin|> <|tool_calls_section_end|> <|tool_call_begin|> <|tool_call_argument_begin|> <|tool_call_end|>",
        result="## Return of {{ m.tool_call_id }}\n{{ m.content }}",
    ),
    "Kimi K3": Family(
        _K3,
        "<|open|>tools<|sep|>",
        "",
        "<|close|>tools<|sep|>",
        ("<|open|>think<|sep|>", "<|close|>think<|sep|>"),
        special="<|open|> <|close|> <|sep|> <|end_of_msg|>",
        gap="",
        text=("<|open|>response<|sep|>", "<|close|>response<|sep|>"),
    ),
    "MiniMax M2": Family(
        '<invoke name="{{ c.name }}">\n'
        + _each(f'<parameter name="{{{{ k }}}}">{_BARE}</parameter>\n')
        + "</invoke>\n",
        "<minimax:tool_call>\n",
        "",
        "</minimax:tool_call>",
    ),
    "MiniMax M3": Family(
        _M3_CALL,
        f"{_M3}<tool_call>\n",
        "",
        f"{_M3}</tool_call>",
        ("<mm:think>", "</mm:think>"),
        macros=_M3_MACRO,
    ),
    "DeepSeek V3, R1": Family(
        "<｜tool▁call▁begin｜>function<｜tool▁sep｜>{{ c.name }}\n```json\n{{ c.arguments | tojson }}\n```<｜tool▁call▁end｜>",
        "<｜tool▁calls▁begin｜>",
        "\n",
        "<｜tool▁calls▁end｜>",
        _THINK,
        gap="",
        special="<｜tool▁calls▁begin｜> <｜tool▁calls▁end｜> <｜tool▁call▁begin｜> <｜tool▁call▁end｜> <｜tool▁sep｜>",
    ),
    "DeepSeek V3.1": Family(
        "<｜tool▁call▁begin｜>{{ c.name }}<｜tool▁sep｜>{{ c.arguments | tojson }}<｜tool▁call▁end｜>",
        "<｜tool▁calls▁begin｜>",
        "",
        "<｜tool▁calls▁end｜>",
        _THINK,
        gap="",
        special="<｜tool▁calls▁begin｜> <｜tool▁calls▁end｜> <｜tool▁call▁begin｜> <｜tool▁call▁end｜> <｜tool▁sep｜>",
    ),
    "DeepSeek V3.2": Family(
        *_dsml("function_calls")[:2], "", _dsml("function_calls")[2], _THINK, gap="\n\n", special=_D
    ),
    "DeepSeek V4": Family(
        *_dsml("tool_calls")[:2], "", _dsml("tool_calls")[2], _THINK, gap="\n\n", special=_D
    ),
    "Mistral": Family(_PAIR, "[TOOL_CALLS][", ", ", "]", None, "[TOOL_CALLS]", gap=""),
    "Devstral, Magistral": Family(
        "[TOOL_CALLS]{{ c.name }}[ARGS]{{ c.arguments | tojson }}",
        thoughts=("[THINK]", "[/THINK]"),
        gap="",
        special="[TOOL_CALLS] [ARGS] [THINK] [/THINK]",
    ),
    "Llama 3": Family(
        '{"name": "{{ c.name }}", "parameters": {{ c.arguments | tojson }}}',
        thoughts=None,
        separator="; ",
        special="<|python_tag|>",
        asks="Tools: <|python_tag|>",
    ),
    "Llama 4": Family(_PYTHON, "[", ", ", "]", None, asks="Write [func_name1(a=1)]"),
    "Gemma 4": Family(
        "<|tool_call>call:{{ c.name }}{{ br(c.arguments) }}<tool_call|>",
        thoughts=("<|channel>thought\n", "\n<channel|>"),
        special='<|tool_call> <tool_call|> <|"|> <|channel> <channel|>',
        gap="",
        macros=_BRACED.replace("MARK", '<|"|>'),
    ),
    "FunctionGemma": Family(
        "<start_function_call>call:{{ c.name }}{{ br(c.arguments) }}<end_function_call>",
        thoughts=None,
        special="<start_function_call> <end_function_call> <escape>",
        gap="",
        macros=_BRACED.replace("MARK", "<escape>"),
    ),
    "Granite 3": Family(_PAIR, "<|tool_call|>[", ", ", "]", _THINK, "<|tool_call|>"),
    "LFM2": Family(
        _PYTHON,
        "<|tool_call_start|>[",
        ", ",
        "]<|tool_call_end|>",
        special="<|tool_call_start|> <|tool_call_end|>",
    ),
    "Seed-OSS": Family(
        "<seed:tool_call>\n<function={{ c.name }}>\n"
        + _each(f"<parameter={{{{ k }}}}>{_BARE}</parameter>\n")
        + "</function>\n</seed:tool_call>",
        separator="\n",
        thoughts=("<seed:think>", "</seed:think>"),
    ),
    "Hunyuan A13B": Family(_PAIR, "<tool_calls>[", ", ", "]</tool_calls>"),
    "Hunyuan 3": Family(
        _glm("\n", "SUFFIX")
        .replace("{{ c.name }}\n", "{{ c.name }}<tool_sepSUFFIX>\n")
        .replace("SUFFIX", ":opensource")
        + "\n",
        "<tool_calls:opensource>\n",
        "",
        "</tool_calls:opensource>",
        ("<think:opensource>", "</think:opensource>"),
        asks="Pairs: <arg_key{}>",
    ),
    "Command A": Family(
        '{"tool_call_id": "{{ loop.index0 }}", "tool_name": "{{ c.name }}", "parameters": {{ c.arguments | tojson }}}',
        "<|START_ACTION|>[\n    ",
        ",\n    ",
        "\n]<|END_ACTION|>",
        ("<|START_THINKING|>", "<|END_THINKING|>"),
        gap="",
        special="<|START_ACTION|> <|END_ACTION|> <|START_THINKING|> <|END_THINKING|> <|START_RESPONSE|> <|END_RESPONSE|>",
        text=("<|START_RESPONSE|>", "<|END_RESPONSE|>"),
    ),
    "Apertus": Family(
        '{"{{ c.name }}": {{ c.arguments | tojson }}}',
        "<|tools_prefix|>[",
        ", ",
        "]<|tools_suffix|>",
        ("<|inner_prefix|>", "<|inner_suffix|>"),
        "<|tools_prefix|> <|tools_suffix|> <|inner_prefix|> <|inner_suffix|>",
        gap="",
    ),
    "OLMo 3": Family(_PYTHON, "<function_calls>", "\n", "</function_calls>"),
    "Phi-4 mini": Family(
        _PAIR, "<|tool_call|>[", ", ", "]<|/tool_call|>", None, "<|tool_call|> <|/tool_call|>"
    ),
    "Nemotron Nano 2": Family(_PAIR, "<TOOLCALL>[", ", ", "]</TOOLCALL>"),
    "Jamba": Family(_PAIR, "<tool_calls>[\n", ",\n", "\n]</tool_calls>", None),
    "MiniCPM 5": Family(
        '<function name="{{ c.name }}">'
        + _each(
            """<param name="{{ k }}">{{ '<![CDATA[' ~ v ~ ']]>' if v is string and ('<' in v or '&' in v or '\\n' in v or v != v | trim) else v if v is string else v | tojson }}</param>"""
        )
        + "</function>",
        separator="\n",
        special="<function </function> <param </param>",
    ),
    "LongCat": Family(
        _glm("\n", "", "longcat_"), separator="\n", thoughts=("<longcat_think>\n", "\n</longcat_think>\n")
    ),
    "GigaChat 3": Family(
        "function call<|role_sep|>\n" + _PAIR,
        thoughts=None,
        gap="<|message_sep|>\n\n",
        parallel=False,
        special="<|role_sep|> <|message_sep|>",
    ),
    "gpt-oss": Family(
        "",
        whole=_SPOKEN,
        kept=_KEPT,
        parallel=False,
        special="<|start|> <|end|> <|message|> <|channel|> <|constrain|> <|call|> <|return|>",
        turns=("<|start|>{{ m.role }}<|message|>", "<|end|>", _START),
    ),
    "InternLM 2": Family(
        '<|action_start|><|plugin|>\n{"name": "{{ c.name }}", "parameters": {{ c.arguments | tojson }}}<|action_end|>',
        thoughts=None,
        special="<|action_start|> <|plugin|> <|action_end|>",
        gap="",
    ),
}
