"""What the chat templates of families write of an answer: condensed from the families' own, not from the
descriptions that the readers are made of. A model writes its answers as its template writes earlier ones."""

# ruff: noqa: E501 (what a family writes of a call on one line)
from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import Any, TypeAlias

import jinja2

Arguments: TypeAlias = Mapping[str, Any]
Call: TypeAlias = tuple[str, Arguments]

_JINJA = jinja2.Environment(keep_trailing_newline=True)
_JINJA.filters |= {"tojson": lambda value: json.dumps(value, ensure_ascii=False), "repr": repr}
_MACROS = (
    "{% macro bare(v) %}{{ v if v is string else v | tojson }}{% endmacro %}"
    "{% macro pairs(c, a, b, z) %}{% for k, v in c.arguments.items() %}{{ a ~ k ~ b }}{{ bare(v) }}{{ z }}{% endfor %}{% endmacro %}"
    "{% macro json(c, args='arguments') %}{{ '{' }}\"name\": \"{{ c.name }}\", \"{{ args }}\": {{ c.arguments | tojson }}}{% endmacro %}"
    "{% macro python(c) %}{{ c.name }}({% for k, v in c.arguments.items() %}{{ '' if loop.first else ', ' }}{{ k }}={{ v | tojson }}{% endfor %}){% endmacro %}"
    "{% macro glm(c, p, l, z) %}<{{ p }}tool_call{{ z }}>{{ c.name ~ l }}{% for k, v in c.arguments.items() %}<{{ p }}arg_key{{ z }}>{{ k }}</{{ p }}arg_key{{ z }}>"
    "{{ l }}<{{ p }}arg_value{{ z }}>{{ bare(v) }}</{{ p }}arg_value{{ z }}>{{ l }}{% endfor %}</{{ p }}tool_call{{ z }}>{% endmacro %}"
    "{% macro braced(v, q) %}{% if v is mapping %}{{ '{' }}{% for a, b in v.items() %}{{ '' if loop.first else ',' }}{{ a }}:{{ braced(b, q) }}{% endfor %}}"
    "{% elif v is string %}{{ q ~ v ~ q }}{% elif v is sequence %}[{% for b in v %}{{ '' if loop.first else ',' }}{{ braced(b, q) }}{% endfor %}]"
    "{% else %}{{ v | tojson }}{% endif %}{% endmacro %}"
    "{% macro elements(v, q) %}{% if v is mapping %}{% for a, b in v.items() %}{{ q }}<{{ a }}>{{ elements(b, q) ~ q }}</{{ a }}>{% endfor %}"
    "{% elif v is sequence and v is not string %}{% for b in v %}{{ q }}<item>{{ elements(b, q) ~ q }}</item>{% endfor %}{% else %}{{ bare(v) }}{% endif %}{% endmacro %}"
)  # fmt: skip


@cache
def _compiled(text: str) -> jinja2.Template:
    return _JINJA.from_string(_MACROS + text)


@dataclass(frozen=True, slots=True)
class Template:
    """`call`: what is written of a call's function `c`, with its `id`. `special`: which parts of the marks are
    special tokens, with white space between them."""

    parser: str
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
    turns: tuple[str, str, str] = ("<|im_start|>{{ m.role }}:", "<|im_end|>", "<|im_start|>assistant:")
    """What stands before a message, behind it, and before an answer."""
    whole: str = ""
    """All of an answer `m`, where its parts do not stand in this order."""
    kept: str = ""
    """The same with its end as the template writes it, where that differs."""
    asks: str = ""
    """What is said of calls, where only that shows the notation."""
    ends: Sequence[str] = ()
    """What a grammar lets no string contain."""
    nests: bool = True
    """Whether mlx-lm's parser reads objects and arrays."""

    @property
    def _answer(self) -> str:
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
    def jinja(self) -> str:
        before, behind, opens = self.turns
        return (
            f"{_MACROS}{{% if tools %}}{before.replace('m.role', repr('system'))}{self.asks}"
            f"{{% for t in tools %}}{{{{ t | tojson }}}} {{% endfor %}}{behind}{{% endif %}}{{% for m in messages %}}"
            f"{{% if m.role == 'assistant' %}}{opens}{self.kept or self._answer + behind}{{% elif m.role == 'tool' %}}"
            f"{before}{self.result}{behind}{{% else %}}{before}{{{{ m.content }}}}{behind}{{% endif %}}{{% endfor %}}"
            f"{{% if add_generation_prompt %}}{opens}{{% endif %}}"
        )

    def written(self, message: Mapping[str, Any]) -> str:
        """Return what the model writes of an answer, up to its end of turn."""
        return _compiled(self._answer).render(m=message)

    def remembered(self, message: Mapping[str, Any]) -> str:
        """Return the same as the next prompt has it."""
        if not self.kept:
            return self.written(message) + self.turns[1]
        parts = [text for text in (message["reasoning_content"], message["content"]) if text]
        joined = {"thinking": "\n\n".join(parts), "content": ""}
        both = joined if message["tool_calls"] else {"thinking": parts[0]}
        return _compiled(self.kept).render(m={**message, **both})

    def render(self, calls: Sequence[Call], **beside: str) -> str:
        """Return calls, `beside` these what else is in the message."""
        functions = [{"name": name, "arguments": arguments} for name, arguments in calls]
        made = [
            {"id": f"functions.{each['name']}:{at}", "function": each} for at, each in enumerate(functions)
        ]
        return self.written({**beside, "tool_calls": made})

    @property
    def marks(self) -> str:
        """All marks of a call, as a file may have them."""
        found = re.findall(r"<[^<>]+>|\[/?[A-Z_]+\]|\]<\]\w+\[>\[", self.render([("n", {"k": "v"})]))
        return " or ".join(dict.fromkeys(found))


def _tagged(name: str, word: str, line: str = "", **more: Any) -> Template:
    """Qwen's, between marks of its own."""
    pairs = f"{{{{ pairs(c, '<parameter=', '>{line}', '{line}</parameter>\n') }}}}"
    call = f"<{word}>\n<function={{{{ c.name }}}}>\n{pairs}</function>\n</{word}>"
    return Template(name, call, separator="\n", ends=("</parameter>", f"</{word}>"), **more)


def _glm(name: str, prefix: str, line: str, **more: Any) -> Template:
    ends = (f"</{prefix}arg_value>", f"</{prefix}tool_call>")
    return Template(
        name,
        f"{{{{ glm(c, '{prefix}', '{line}', '') }}}}",
        separator=line,
        ends=ends,
        asks=f"Pairs of <{prefix}arg_key> in <{prefix}tool_call>",
        **more,
    )


_D = "｜DSML｜"


def _dsml(name: str, word: str) -> Template:
    call = (
        f'<{_D}invoke name="{{{{ c.name }}}}">\n{{% for k, v in c.arguments.items() %}}<{_D}parameter name="{{{{ k }}}}" '
        f"string=\"{{{{ 'true' if v is string else 'false' }}}}\">{{{{ bare(v) }}}}</{_D}parameter>{{{{ '\n' }}}}{{% endfor %}}</{_D}invoke>\n"
    )
    ends = (f"</{_D}parameter>", f"</{_D}{word}>")
    return Template(name, call, f"<{_D}{word}>\n", "", f"</{_D}{word}>", _THINK, _D, gap="\n\n", ends=ends)


def _listed(
    name: str, opening: str, closing: str, separator: str = ", ", call: str = "{{ json(c) }}", **more: Any
) -> Template:
    return Template(name, call, opening, separator, closing, **more)


_THINK = ("<think>", "</think>")
_K3 = (
    '<|open|>call tool="{{ c.name }}" index="{{ loop.index }}"<|sep|>{% for k, v in c.arguments.items() %}<|open|>argument key="{{ k }}" type="'
    "{{ 'string' if v is string else 'boolean' if v is boolean else 'number' if v is number else 'null' if v is none else 'object' if v is mapping else 'array' }}"
    '"<|sep|>{{ bare(v) }}<|close|>argument<|sep|>{% endfor %}<|close|>call<|sep|>'
)
_M3 = "]<]minimax[>["
_V3 = "<｜tool▁calls▁begin｜> <｜tool▁calls▁end｜> <｜tool▁call▁begin｜> <｜tool▁call▁end｜> <｜tool▁sep｜>"
_START = "<|start|>assistant"
_SPOKEN = (
    "{% if m.reasoning_content %}<|channel|>analysis<|message|>{{ m.reasoning_content }}<|end|>" + _START + "{% endif %}"
    "{% if m.tool_calls %}{% if m.content %}<|channel|>commentary<|message|>{{ m.content }}<|end|>" + _START + "{% endif %}"
    "{% set c = m.tool_calls[0].function %}<|channel|>commentary to=functions.{{ c.name }} <|constrain|>json<|message|>"
    "{{ c.arguments | tojson }}{% else %}<|channel|>final<|message|>{{ m.content }}{% endif %}"
)  # fmt: skip
_KEPT = (
    "{% if m.tool_calls %}{% if m.content and m.thinking %}{{ raise_exception('Cannot pass both') }}{% endif %}"
    "{% if m.content or m.thinking %}<|channel|>analysis<|message|>{{ m.content or m.thinking }}<|end|>" + _START + "{% endif %}"
    "{% set c = m.tool_calls[0].function %} to=functions.{{ c.name }}<|channel|>commentary json<|message|>"
    "{{ c.arguments | tojson }}<|call|>{% else %}{% if m.thinking %}<|channel|>analysis<|message|>{{ m.thinking }}<|end|>"
    + _START + "{% endif %}<|channel|>final<|message|>{{ m.content }}<|end|>{% endif %}"
)  # fmt: skip
_CDATA = "{{ '<![CDATA[' ~ v ~ ']]>' if v is string and ('<' in v or '&' in v or '\n' in v or v != v | trim) else bare(v) }}"

# fmt: off
FAMILIES = {
    "Qwen 3": Template("json_tools", "<tool_call>\n{{ json(c) }}\n</tool_call>", separator="\n"),
    "Qwen 3 Coder": _tagged("qwen3_coder", "tool_call", "\n", thoughts=None),
    "Qwen 3.5, Nemotron 3, Step 3.5": _tagged("qwen3_coder", "tool_call", "\n"),
    "GLM 4.5": _glm("glm47", "", "\n", thoughts=_THINK),
    "GLM 4.7": _glm("glm47", "", "", thoughts=_THINK),
    "Kimi K2": Template("kimi_k2", "<|tool_call_begin|>{{ id }}<|tool_call_argument_begin|>{{ c.arguments | tojson }}<|tool_call_end|>",
        "<|tool_calls_section_begin|>", "", "<|tool_calls_section_end|>", _THINK, ids="functions.{}:{}",
        special="<|tool_calls_section_begin|> <|tool_calls_section_end|> <|tool_call_begin|> <|tool_call_argument_begin|> <|tool_call_end|>",
        result="## Return of {{ m.tool_call_id }}\n{{ m.content }}"),
    "Kimi K3": Template("kimi_k3", _K3, "<|open|>tools<|sep|>", "", "<|close|>tools<|sep|>", ("<|open|>think<|sep|>", "<|close|>think<|sep|>"),
        "<|open|> <|close|> <|sep|> <|end_of_msg|>", ("<|open|>response<|sep|>", "<|close|>response<|sep|>"), gap="",
        ends=("<|close|>argument<|sep|>", "<|close|>tools<|sep|>")),
    "MiniMax M2": Template("minimax_m2", "<invoke name=\"{{ c.name }}\">\n{{ pairs(c, '<parameter name=\"', '\">', '</parameter>\n') }}</invoke>\n",
        "<minimax:tool_call>\n", "", "</minimax:tool_call>", ends=("</parameter>", "</minimax:tool_call>")),
    "MiniMax M3": Template("minimax_m3", f'{_M3}<invoke name="{{{{ c.name }}}}">{{{{ elements(c.arguments, "{_M3}") }}}}{_M3}</invoke>\n',
        f"{_M3}<tool_call>\n", "", f"{_M3}</tool_call>", ("<mm:think>", "</mm:think>")),
    "DeepSeek V3, R1": Template("deepseek_v3", "<｜tool▁call▁begin｜>function<｜tool▁sep｜>{{ c.name }}\n```json\n{{ c.arguments | tojson }}\n```<｜tool▁call▁end｜>",
        "<｜tool▁calls▁begin｜>", "\n", "<｜tool▁calls▁end｜>", _THINK, _V3, gap=""),
    "DeepSeek V3.1": Template("deepseek_v31", "<｜tool▁call▁begin｜>{{ c.name }}<｜tool▁sep｜>{{ c.arguments | tojson }}<｜tool▁call▁end｜>",
        "<｜tool▁calls▁begin｜>", "", "<｜tool▁calls▁end｜>", _THINK, _V3, gap=""),
    "DeepSeek V3.2": _dsml("dsml", "function_calls"),
    "DeepSeek V4": _dsml("dsml4", "tool_calls"),
    "Mistral": _listed("mistral", "[TOOL_CALLS][", "]", thoughts=None, special="[TOOL_CALLS]", gap=""),
    "Devstral, Magistral": Template("mistral", "[TOOL_CALLS]{{ c.name }}[ARGS]{{ c.arguments | tojson }}", thoughts=("[THINK]", "[/THINK]"),
        special="[TOOL_CALLS] [ARGS] [THINK] [/THINK]", gap=""),
    "Llama 3": Template("llama3_json", "{{ json(c, 'parameters') }}", separator="; ", thoughts=None, special="<|python_tag|>", asks="Not <|python_tag|>"),
    "Llama 4": _listed("llama4_pythonic", "[", "]", call="{{ python(c) }}", thoughts=None, asks="Write [func_name1(a=1)]"),
    "Gemma 4": Template("gemma4", "<|tool_call>call:{{ c.name }}{{ braced(c.arguments, '<|\"|>') }}<tool_call|>",
        thoughts=("<|channel>thought\n", "\n<channel|>"), special='<|tool_call> <tool_call|> <|"|> <|channel> <channel|>', gap="",
        ends=('<|"|>', "<tool_call|>")),
    "FunctionGemma": Template("function_gemma", "<start_function_call>call:{{ c.name }}{{ braced(c.arguments, '<escape>') }}<end_function_call>",
        thoughts=None, special="<start_function_call> <end_function_call> <escape>", gap="", nests=False,
        ends=("<escape>", "<end_function_call>")),
    "Granite 3": _listed("granite", "<|tool_call|>[", "]", thoughts=_THINK, special="<|tool_call|>"),
    "LFM2": _listed("pythonic", "<|tool_call_start|>[", "]<|tool_call_end|>", call="{{ python(c) }}",
        special="<|tool_call_start|> <|tool_call_end|>"),
    "Seed-OSS": _tagged("seed_oss", "seed:tool_call", thoughts=("<seed:think>", "</seed:think>")),
    "Hunyuan A13B": _listed("hunyuan", "<tool_calls>[", "]</tool_calls>"),
    "Hunyuan 3": Template("hy_v3", "{{ glm({'name': c.name ~ '<tool_sep:opensource>', 'arguments': c.arguments}, '', '\n', ':opensource') }}\n",
        "<tool_calls:opensource>\n", "", "</tool_calls:opensource>", ("<think:opensource>", "</think:opensource>"), asks="Pairs: <arg_key{}>"),
    "Command A": _listed("cohere", "<|START_ACTION|>[\n    ", "\n]<|END_ACTION|>", ",\n    ",
        '{"tool_call_id": "{{ loop.index0 }}", "tool_name": "{{ c.name }}", "parameters": {{ c.arguments | tojson }}}', gap="",
        thoughts=("<|START_THINKING|>", "<|END_THINKING|>"), text=("<|START_RESPONSE|>", "<|END_RESPONSE|>"),
        special="<|START_ACTION|> <|END_ACTION|> <|START_THINKING|> <|END_THINKING|> <|START_RESPONSE|> <|END_RESPONSE|>"),
    "Apertus": _listed("apertus", "<|tools_prefix|>[", "]<|tools_suffix|>", call='{"{{ c.name }}": {{ c.arguments | tojson }}}', gap="",
        thoughts=("<|inner_prefix|>", "<|inner_suffix|>"), special="<|tools_prefix|> <|tools_suffix|> <|inner_prefix|> <|inner_suffix|>"),
    "OLMo 3": _listed("olmo3", "<function_calls>", "</function_calls>", "\n", "{{ python(c) }}"),
    "Phi-4 mini": _listed("phi4_mini", "<|tool_call|>[", "]<|/tool_call|>", thoughts=None, special="<|tool_call|> <|/tool_call|>"),
    "Nemotron Nano 2": _listed("nemotron_nano", "<TOOLCALL>[", "]</TOOLCALL>"),
    "Jamba": _listed("hunyuan", "<tool_calls>[\n", "\n]</tool_calls>", ",\n", thoughts=None),
    "MiniCPM 5": Template("minicpm5", '<function name="{{ c.name }}">{% for k, v in c.arguments.items() %}<param name="{{ k }}">' + _CDATA + "</param>{% endfor %}</function>",
        separator="\n", special="<function </function> <param </param>", ends=("</param>", "</function>", "]]>")),
    "LongCat": _glm("longcat", "longcat_", "\n", thoughts=("<longcat_think>\n", "\n</longcat_think>\n")),
    "GigaChat 3": Template("gigachat3", "function call<|role_sep|>\n{{ json(c) }}", thoughts=None, gap="<|message_sep|>\n\n", parallel=False,
        special="<|role_sep|> <|message_sep|>"),
    "gpt-oss": Template("harmony", "", whole=_SPOKEN, kept=_KEPT, parallel=False, turns=("<|start|>{{ m.role }}<|message|>", "<|end|>", _START),
        special="<|start|> <|end|> <|message|> <|channel|> <|constrain|> <|call|> <|return|>"),
    "InternLM 2": Template("internlm2", "<|action_start|><|plugin|>\n{{ json(c, 'parameters') }}<|action_end|>", thoughts=None, gap="",
        special="<|action_start|> <|plugin|> <|action_end|>"),
}
# fmt: on

_PYTHON = "{{ c.name }}({% for k, v in c.arguments.items() %}{{ '' if loop.first else ', ' }}{{ k }}={{ v | repr }}{% endfor %})"
TEMPLATES = {
    family: FAMILIES[name]
    for family, name in (
        *(
            ("json_tools", "Qwen 3"),
            ("qwen3_coder", "Qwen 3 Coder"),
            ("glm47", "GLM 4.7"),
            ("glm45", "GLM 4.5"),
        ),
        *(
            ("longcat", "LongCat"),
            ("minimax_m2", "MiniMax M2"),
            ("minicpm5", "MiniCPM 5"),
            ("dsml", "DeepSeek V3.2"),
        ),
        *(
            ("kimi_k3", "Kimi K3"),
            ("gemma4", "Gemma 4"),
            ("function_gemma", "FunctionGemma"),
            ("pythonic", "LFM2"),
        ),
        *(("kimi_k2", "Kimi K2"), ("mistral", "Devstral, Magistral"), ("mistral-list", "Mistral")),
    )
} | {"pythonic-repr": replace(FAMILIES["LFM2"], call=_PYTHON, ends=("\0", "\x7f"))}
"""Those whose reading is compared with mlx-lm's, by the names of `--tool-parser`."""
