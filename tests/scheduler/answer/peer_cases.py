"""What models write, and what a client must get of it: kinds of texts that the suites of vLLM, SGLang,
llama.cpp, mlx-lm and harmony hold, and those of public reports, in texts of our own."""

# ruff: noqa: E501 (a case a line)
from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from scheduler.answer.answer_format import REASONING_SYNTAXES, AnswerFormat, tool_syntax
from scheduler.request import Tool
from tests.scheduler.answer.notations import HARMONY, KIMI_K3, Written


def _tool(name: str, **properties: str | list[str]) -> Tool:
    schemas = {key: {"type": kind} for key, kind in properties.items()}
    return Tool(name, "", {"type": "object", "properties": schemas})


TOOLS = (
    Tool(
        "get_weather",
        "",
        {
            "type": "object",
            "properties": {
                "city": {"type": "string"},
                "days": {"type": "integer"},
                "units": {"type": "array", "items": {"type": "string"}},
                "note": {"type": ["string", "null"]},
            },
            "required": ["city"],
        },
    ),
    _tool("write_file", path="string", content="string"),
    Tool(
        "maps.get-weather/v2",
        "",
        {"type": "object", "properties": {"city-name": {"type": "string"}, "$top": {"type": "integer"}}},
    ),
    _tool("now"),
    Tool("a&b", "", {"type": "object", "properties": {'c"d': {"type": "string"}}}),
)
OSLO = ("get_weather", {"city": "Oslo"})
OSLO_3 = ("get_weather", {"city": "Oslo", "days": 3})
NOW: tuple[str, dict[str, Any]] = ("now", {})
NAMED = ("maps.get-weather/v2", {"city-name": "x", "$top": 3})


def _case(
    family: str,
    raw: str,
    *calls: tuple[str, dict[str, Any]],
    text: str = "",
    thoughts: str = "",
    malformed: int = 0,
    in_thoughts: bool = False,
) -> Written:
    return Written(family, FORMS[family], raw, text, thoughts, calls, in_thoughts, malformed, TOOLS)


def _form(tools: str, reasoning: str = "think", *hidden: str) -> AnswerFormat:
    return AnswerFormat(REASONING_SYNTAXES[reasoning], tool_syntax(tools), hidden_marks=hidden)


FORMS = {
    "Qwen 3": _form("json_tools"),
    "Qwen 3 Coder, Nemotron 3, Step 3.5": _form("qwen3_coder"),
    "GLM": _form("glm47"),
    "Kimi K2": _form("kimi_k2"),
    "Kimi K3": KIMI_K3,
    "MiniMax M2": _form("minimax_m2"),
    "MiniMax M3": _form("minimax_m3", "minimax_m3"),
    "DeepSeek V3, R1": _form("deepseek_v3"),
    "DeepSeek V3.1": _form("deepseek_v31"),
    "DeepSeek V3.2": _form("dsml"),
    "DeepSeek V4": _form("dsml4"),
    "DeepSeek V4.1": _form("dsml41"),
    "gpt-oss": HARMONY,
    "Mistral, Devstral": _form("mistral", "magistral"),
    "Llama 3": _form("llama3_json"),
    "Llama 4": _form("llama4_pythonic"),
    "Gemma 4": _form("gemma4", "gemma4", "<|channel>", "<|channel>response\n"),
    "Granite 3": _form("granite", "think", "<response>", "</response>"),
    "Granite 3.2": _form("granite", "granite"),
    "Granite 20B": _form("granite_20b"),
    "LFM2": _form("pythonic"),
    "Seed-OSS": _form("seed_oss", "seed"),
    "Hunyuan A13B": _form("hunyuan", "think", "<answer>", "</answer>"),
    "Hunyuan 3": _form("hy_v3"),
    "Command": _form("cohere", "cohere", "<|START_RESPONSE|>", "<|END_RESPONSE|>"),
    "Command R+": _form("command_r"),
    "Apertus": _form("apertus", "apertus"),
    "xLAM": _form("xlam"),
    "GigaChat 3": _form("gigachat3"),
    "Phi-4 mini": _form("phi4_mini"),
    "Nemotron Nano 2": _form("nemotron_nano"),
    "InternLM 2": _form("internlm2"),
    "Jamba": _form("jamba"),
    "OLMo 3": _form("olmo3"),
    "MiniCPM 5": _form("minicpm5"),
    "Apriel": _form("hunyuan", "apriel"),
    "DeepSeek V3.1, no tools in its template": _form("deepseek_v31").with_generic_tools(),
}

# fmt: off
_JSON = '{"name": "get_weather", "arguments": {"city": "Oslo"}}'
_JSON_NOW = '{"name": "now", "arguments": {}}'
_LIST = f"[{_JSON}, {_JSON_NOW}]"
_XML = "<function=get_weather>\n<parameter=city>\nOslo\n</parameter>\n</function>"
_MD = "<parameter=path>\na.md\n</parameter>\n"
_MARKS = "x </parameter> y\n</tool_call>\n</function> z"
_EXAMPLE = f"See:\n<tool_call>\n{_XML}\n</tool_call>\nend"
_D, _N = "｜DSML｜", "]<]minimax[>["
_INVOKE = '<invoke name="get_weather">\n<parameter name="city">Oslo</parameter>\n</invoke>\n'
_PATH = '<parameter name="path">a</parameter>\n'
_K2 = "<|tool_call_begin|>functions.get_weather:0<|tool_call_argument_begin|>"
_K2_OSLO = f'{_K2}{{"city": "Oslo"}}<|tool_call_end|>'
_GLM_CITY = "<arg_key>city</arg_key><arg_value>Oslo</arg_value>"
_MESSAGE = "<|end|><|start|>assistant<|channel|>"


def _dsml(word: str, mark: str = _D) -> str:
    return (
        f'<{mark}{word}>\n<{mark}invoke name="get_weather">\n<{mark}parameter name="city" string="true">Oslo'
        f'</{mark}parameter>\n<{mark}parameter name="days" string="false">3</{mark}parameter>\n</{mark}invoke>\n</{mark}{word}>'
    )


def _written(path: str, content: str) -> tuple[str, dict[str, Any]]:
    return "write_file", {"path": path, "content": content}


def _hermes_and_qwen() -> Iterator[Written]:
    for family in ("Qwen 3", "Qwen 3 Coder, Nemotron 3, Step 3.5"):
        for call in (f"<tool_call>\n{_JSON}\n</tool_call>", f"<tool_call>\n{_XML}\n</tool_call>"):
            yield _case(family, f"I look.\n{call}", OSLO, text="I look.")
            yield _case(family, f"<think>\nhm\n</think>\n\n{call}\n{call}", OSLO, OSLO, thoughts="hm")
            yield _case(family, f"I look. {call} Then I tell.", OSLO, text="I look. Then I tell.")
            yield _case(family, f"<think>quick {call}", OSLO, thoughts="quick")
            yield _case(family, f"I could {call} so.\n</think>\n\nDone.", text="Done.", thoughts=f"I could {call} so.", in_thoughts=True)
        yield _case(family, f"Well.\n{_XML}\n</tool_call>", OSLO, text="Well.")
        yield _case(family, f"{_XML}\nThen.", OSLO, text="Then.")
        yield _case(family, "Write <function=name> so.", text="Write <function=name> so.")
        yield _case(family, f"<tool_call>\n<tool_call>\n{_JSON}\n</tool_call>\n</tool_call>", OSLO)
        yield _case(family, f"<tool_call>\n<function=write_file\nor <tool_call>\n{_XML}\n</tool_call>", OSLO, malformed=1)
        yield _case(family, f"<tool_call>\n{_XML}\n<tool_call>\n<function=now>\n</function>\n</tool_call>", OSLO, NOW)
        raw = "<function=write_file>\n<parameter=path>\na.md\n<parameter=content>\nhi\n</parameter>\n</function>"
        yield _case(family, f"<tool_call>\n{raw}\n</tool_call>", _written("a.md", "hi"))
        for content in (_MARKS, _EXAMPLE, "</tool_call>", "a <parameter=x> b"):
            raw = f"<function=write_file>\n{_MD}<parameter=content>\n{content}\n</parameter>\n</function>"
            whole = f"<tool_call>\n{raw}\n</tool_call>"
            yield _case(family, whole, _written("a.md", content))
            yield _case(family, f"{whole}\n<tool_call>\n{_JSON_NOW}\n</tool_call>", _written("a.md", content), NOW)
            yield _case(family, f"{whole}\nDone.", _written("a.md", content), text="Done.")
        raw = f"<function=write_file>\n{_MD}<parameter=content>\nhalf"
        yield _case(family, f"<tool_call>\n{raw}", malformed=1)
        raw = "<function=maps.get-weather/v2>\n<parameter=city-name>\nx\n</parameter>\n<parameter=$top>\n3\n</parameter>"
        yield _case(family, f"<tool_call>\n{raw}\n</function>\n</tool_call>", NAMED)
        yield _case(family, '<tool_call>{"name": "now"}</tool_call>', NOW)
        yield _case(family, '<tool_call>{"arguments": {"city": "Oslo"}, "name": "get_weather"}}</tool_call>', OSLO)
        yield _case(family, '<tool_call>{"name": "write_file", "arguments": {"path": "a", "content": "</tool_call>"}}</tool_call>', _written("a", "</tool_call>"))
        yield _case(family, f'<tool_call>{{"name": "now", "arguments": {{"a": "x</tool_call>\n<tool_call>{_JSON}</tool_call>', OSLO, malformed=1)
        yield _case(family, "T.</think>\n\n</think>\n\nAnswer.", text="Answer.", thoughts="T.", in_thoughts=True)
        yield _case(family, "</think>\n\nAnswer.", text="Answer.")
        yield _case(family, f"<tool_call>\n{_XML.replace('=city', '=days')}\n</tool_call>", ("get_weather", {"days": "Oslo"}))
        other = _XML.replace("get_weather", "other").replace(
            "</function>", "<parameter=days>\n3\n</parameter>\n</function>"
        )
        call = f"<tool_call>\n{other}\n</tool_call>"
        yield _case(family, f"{call}\n{call}", ("other", OSLO_3[1]), ("other", OSLO_3[1]))
        wrapped = _XML.replace("=city", "=arguments").replace("Oslo", '{"city": "Oslo"}')
        yield _case(family, f"<tool_call>\n{wrapped}\n</tool_call>", OSLO)


def _tagged() -> Iterator[Written]:
    yield _case("GLM", f"<think>so</think>\nI look.<tool_call>get_weather{_GLM_CITY}<arg_key>days</arg_key>" "<arg_value>3</arg_value></tool_call>", OSLO_3, thoughts="so", text="I look.")
    yield _case("GLM", "<tool_call>get_weather\n<arg_key>city</arg_key>\n<arg_value>Oslo</arg_value>\n</tool_call>", OSLO)
    yield _case("GLM", "<tool_call>now</tool_call>\n<tool_call>now\n</tool_call>", NOW, NOW)
    yield _case("GLM", f"<tool_call>get_weather{_GLM_CITY}\n<tool_call>now</tool_call>", OSLO, NOW)
    yield _case("GLM", f"<tool_call>{_JSON}</tool_call>", OSLO)
    yield _case("GLM", f"<tool_call>get_weather{_GLM_CITY}<arg_key>note</arg_key>", malformed=1)
    yield _case("GLM", "<tool_call>write_file<arg_key>path</arg_key><arg_key>content</arg_key><arg_value>a</arg_value>" "</tool_call>", malformed=1)
    yield _case("GLM", "<tool_call>write_file<arg_key>path</arg_key><arg_value>a</arg_value><arg_key>content</arg_key>"
                "<arg_value>x </arg_value> </tool_call> y</arg_value></tool_call>",
                _written("a", "x </arg_value> </tool_call> y"))  # fmt: skip
    yield _case("GLM", "<tool_call>what time is it</tool_call>", malformed=1)
    for raw in (f"<minimax:tool_call>\n{_INVOKE}</minimax:tool_call>", _INVOKE, f"<minimax:tool_call>{_INVOKE}"):
        yield _case("MiniMax M2", f"<think>a</think>Ok.\n{raw}", OSLO, thoughts="a", text="Ok.")
        raw = raw.replace('"get_weather"', '" get_weather "')
        yield _case("MiniMax M2", f"Ok.\n{raw}", OSLO, text="Ok.")
    yield _case("MiniMax M2", f"<minimax:tool_call>\n{_INVOKE}{_INVOKE}</minimax:tool_call>", OSLO, OSLO)
    raw = _INVOKE.replace("</invoke>\n", "")
    yield _case("MiniMax M2", f"<minimax:tool_call>\n{raw}</minimax:tool_call>", OSLO)
    yield _case("MiniMax M2", f'<minimax:tool_call><invoke name="write_file">{_PATH}<parameter name="content">a'
                "</parameter> b</invoke> c</parameter>\n</invoke></minimax:tool_call>",
                _written("a", "a</parameter> b</invoke> c"))  # fmt: skip
    yield _case(
        "MiniMax M3",
        f'<mm:think>a</mm:think>Ok.{_N}<tool_call>\n{_N}<invoke name="get_weather">{_N}<city>Oslo{_N}</city>{_N}<units>'
        f'{_N}<item>C{_N}</item>{_N}<item>F{_N}</item>{_N}</units>{_N}</invoke>\n{_N}<invoke name="now">{_N}</invoke>\n'
        f"{_N}</tool_call>",
        ("get_weather", {"city": "Oslo", "units": ["C", "F"]}), NOW, text="Ok.", thoughts="a",
    )  # fmt: skip
    yield _case("MiniMax M3", f"{_N}{_N}<invoke name=now{_N}</invoke>\n", text=f"{_N}\n", malformed=1)
    for inside, calls in (
        (f"{_N}<city>{_N}</city>{_N}<units>{_N}</units>", (("get_weather", {"city": "", "units": []}),)),
        (f"{_N}<units>{_N}<item>C{_N}</item> lost{_N}</units>", ()),
        (f"{_N}<units>lost{_N}<item>C{_N}</item>{_N}</units>", ()),
    ):
        yield _case("MiniMax M3", f'{_N}<tool_call>\n{_N}<invoke name="get_weather">{inside}{_N}</invoke>\n{_N}</tool_call>', *calls, malformed=1 - len(calls))
    for family, word in (("DeepSeek V3.2", "function_calls"), ("DeepSeek V4", "tool_calls")):
        yield _case(family, f"Ok.\n\n{_dsml(word)}", OSLO_3, text="Ok.")
        yield _case(family, f"hm</think>\n\n{_dsml(word)}", OSLO_3, thoughts="hm", in_thoughts=True)
        yield _case(family, _dsml("tool_calls"), OSLO_3)
        days = f'<{_D}parameter name="days" string="false">3'
        yield _case(family, _dsml(word).replace(f"</{_D}parameter>\n{days}", days), OSLO_3)
        for key, flag in (("arguments", "false"), ("input", "true")):
            whole = (
                f'<{_D}parameter name="{key}" string="{flag}">{{"city": "Oslo", "days": 3}}</{_D}parameter>'
            )
            yield _case(family, f'<{_D}{word}>\n<{_D}invoke name="get_weather">\n{whole}\n</{_D}invoke>\n</{_D}{word}>', OSLO_3)
        yield _case(family, _dsml(word).split("\n", 1)[1], OSLO_3)
        yield _case(family, f'<{_D}{word}>\n<{_D}invoke name="now">\n</{_D}invoke>\n</{_D}{word}>', NOW)
        yield _case(family, f'<{_D}{word}>\n<{_D}invoke name="now"', malformed=1)
    for word in ("toolcalls", "tool"):
        raw = _dsml("tool_calls").replace(f"<{_D}tool_calls>", f"<{_D}{word}>", 1)
        yield _case("DeepSeek V4", f"Ok.\n{raw}", OSLO_3, text="Ok.")
    for family in ("DeepSeek V4", "DeepSeek V4.1"):
        yield _case(family, f"hm</think>{_dsml('calls', f'{_D} ')}", OSLO_3, thoughts="hm", in_thoughts=True)
    for family, call in (("Qwen 3", "tool_call"), ("GLM", "tool_call"), ("MiniMax M2", "minimax:tool_call")):
        yield _case(family, f"a</think>\n<{call}></{call}>Ok.", text="Ok.", thoughts="a", in_thoughts=True)
        yield _case(family, f"Write <{call}></{call}> so.", text="Write so.", malformed=1)
    yield _case("Seed-OSS", "<seed:think>a</seed:think>Ok.<seed:tool_call>\n<function=get_weather>\n"
                "<parameter=city>Oslo</parameter>\n<parameter=days>3</parameter>\n</function>\n</seed:tool_call>",
                OSLO_3, text="Ok.", thoughts="a")  # fmt: skip
    for suffix in (":opensource", ""):
        yield _case(
            "Hunyuan 3",
            f"<tool_calls{suffix}>\n<tool_call{suffix}>get_weather<tool_sep{suffix}>\n<arg_key{suffix}>city"
            f"</arg_key{suffix}>\n<arg_value{suffix}>Oslo</arg_value{suffix}>\n</tool_call{suffix}>\n"
            f"<tool_call{suffix}>now<tool_sep{suffix}>\n</tool_call{suffix}>\n</tool_calls{suffix}>",
            OSLO, NOW,
        )  # fmt: skip
    yield _case("MiniCPM 5", 'Ok <function name="get_weather"><param name="city">Oslo</param></function>', OSLO, text="Ok")
    yield _case("MiniCPM 5", '<function name="write_file"><param name="path">a</param><param name="content"><![CDATA[x '
                "</function> </param>\n]]></param></function>",
                _written("a", "x </function> </param>\n"))  # fmt: skip
    yield _case(
        "Kimi K3",
        "<|open|>think<|sep|>a<|close|>think<|sep|><|open|>response<|sep|>Ok.<|close|>response<|sep|><|open|>tools<|sep|>"
        '<|open|>call tool="get_weather" index="1"<|sep|><|open|>argument key="city" type="string"<|sep|>Oslo'
        '<|close|>argument<|sep|><|open|>argument key="days" type="number"<|sep|>3<|close|>argument<|sep|><|close|>call'
        "<|sep|><|close|>tools<|sep|><|close|>message<|sep|>",
        OSLO_3, text="Ok.", thoughts="a",
    )  # fmt: skip
    yield _case(
        "Kimi K3",
        '<|open|>tools<|sep|><|open|>call tool="a&amp;b" index="1"<|sep|><|open|>argument key="c&quot;d" type="string"'
        "<|sep|>x<|close|>argument<|sep|><|close|>call<|sep|><|close|>tools<|sep|>",
        ("a&b", {'c"d': "x"}),
    )
    yield _case("Kimi K3", "<|open|>response<|sep|>Hi<|close|>response<|sep|>", text="Hi", in_thoughts=True)


def _in_json() -> Iterator[Written]:
    section = "<|tool_calls_section_begin|>", "<|tool_calls_section_end|>"
    yield _case("Kimi K2", f"Ok. {section[0]}{_K2_OSLO}{section[1]}", OSLO, text="Ok.")
    yield _case("Kimi K2", _K2_OSLO, OSLO)
    yield _case("Kimi K2", f"<|tool_call_section_begin|>{_K2_OSLO}<|tool_call_section_end|>", OSLO)
    yield _case("Kimi K2", f"{section[0]}{_K2_OSLO}{_K2_OSLO}{section[1]}", OSLO, OSLO)
    yield _case("Kimi K2", f'{section[0]}{_K2}{{"city": "Oslo"}}{section[1]}', OSLO)
    yield _case("Kimi K2", f"Ok. {section[0]}{section[1]}", text="Ok.")
    yield _case("Kimi K2", f"{section[0]}{_K2_OSLO.replace('functions.', '')}{section[1]}", OSLO)
    yield _case("Kimi K2", f'{section[0]}{_K2}{{"city": "Os<|tool_call_end|>{_K2_OSLO}{section[1]}', OSLO, malformed=1)
    named = _K2.replace("get_weather", "maps.get-weather/v2")
    yield _case("Kimi K2", f'{section[0]}{named}{{"city-name": "x", "$top": 3}}<|tool_call_end|>{section[1]}', NAMED)
    for own in ("0", "call00003", "toolu_01Ab", "functions.call_3:3", "functions_get_weather_1", "functionsget_weather5", "functions.get_weather1"):
        yield _case("Kimi K2", section[0] + _K2_OSLO.replace("functions.get_weather:0", own) + section[1], OSLO)
    # No tool takes these.
    yield _case("Kimi K2", f'{section[0]}{_K2.replace("functions.get_weather:0", "0")}{{"x": 1}}{section[1]}', malformed=1)
    yield _case("Kimi K2", f"{section[0]}{_K2.replace('get_weather', 'now')}<|tool_call_end|>{section[1]}", NOW)
    begin, end = "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>", "<｜tool▁call▁end｜><｜tool▁calls▁end｜>"
    fenced = 'get_weather\n```json\n{"city": "Oslo"}\n```'
    yield _case("DeepSeek V3, R1", f"Ok.{begin}function<｜tool▁sep｜>{fenced}{end}", OSLO, text="Ok.")
    yield _case("DeepSeek V3, R1", f"{begin}function<｜tool▁sep｜>{fenced}<｜tool▁call▁end｜>\n<｜tool▁call▁begin｜>function" f"<｜tool▁sep｜>now\n```json\n{{}}\n```{end}", OSLO, NOW)
    family = "DeepSeek V3.1, no tools in its template"
    for raw in (f"<tool_call>\n{_JSON}\n</tool_call>", f'{begin}get_weather<｜tool▁sep｜>{{"city": "Oslo"}}{end}'):
        yield _case(family, f"a</think>Ok.\n{raw}", OSLO, text="Ok.", thoughts="a", in_thoughts=True)
    for family in ("DeepSeek V3, R1", "DeepSeek V3.1"):
        yield _case(family, f'{begin}get_weather<｜tool▁sep｜>{{"city": "Oslo"}}{end}', OSLO)
        yield _case(family, "<think>a</think>Ok.", text="Ok.", thoughts="a")
    yield _case("Mistral, Devstral", '[THINK]a[/THINK]Ok.[TOOL_CALLS]get_weather[ARGS]{"city": "Oslo"}', OSLO, text="Ok.", thoughts="a")
    yield _case("Mistral, Devstral", '[TOOL_CALLS]get_weather[CALL_ID]abc123XYZ[ARGS]{"city": "Oslo"}[TOOL_CALLS]now{}', OSLO, NOW)
    yield _case("Mistral, Devstral", '[TOOL_CALLS]write_file[ARGS]{"path": "a", "content": "[TOOL_CALLS]now"}', _written("a", "[TOOL_CALLS]now"))
    for raw in ("now", "now[ARGS]", "now[TOOL_CALLS]now{}"):
        yield _case("Mistral, Devstral", f"Ok.[TOOL_CALLS]{raw}", *[NOW] * raw.count("now"), text="Ok.")
    for raw in ('get_weather[ARGS]{"city": "Oslo"}[TOOL_CALLS]now[ARGS]{}', 'get_weather[ARGS]{"city": "Oslo"}now[ARGS]{}'):
        yield _case("Mistral, Devstral", f"I get weather. {raw}", OSLO, NOW, text="I get weather.")
    yield _case("Mistral, Devstral", "Write now [ARGS] so.", text="Write now [ARGS] so.")
    yield _case("Mistral, Devstral", "[TOOL_CALLS]nothing", malformed=1)
    yield _case("Mistral, Devstral", f"[TOOL_CALLS] {_LIST}\nMore.", OSLO, NOW, text="More.")
    yield _case("Mistral, Devstral", f"[TOOL_CALLS] {_JSON}", OSLO)
    yield _case("Mistral, Devstral", '[TOOL_CALLS]maps.get-weather/v2[ARGS]{"city-name": "x", "$top": 3}', NAMED)
    parameters = _JSON.replace("arguments", "parameters")
    for raw in (parameters, f"<|python_tag|>{parameters}", f"[{parameters}]", '[get_weather(city="Oslo")]',
                '{"type": "function", "name": "get_weather", "parameters": {"city": "Oslo"}}',
                '<function=get_weather>{"city": "Oslo"}</function>'):  # fmt: skip
        yield _case("Llama 3", raw, OSLO)
    yield _case("Llama 3", f"So: {parameters}; {_JSON_NOW} Well?", OSLO, NOW, text="So: Well?")
    yield _case("Llama 3", 'Use {"a": 1} or [1, 2].', text='Use {"a": 1} or [1, 2].')
    yield _case("Llama 4", '[get_weather(city="Oslo", days=3), now()]', OSLO_3, NOW)
    yield _case("Llama 4", '<|python_start|>[get_weather(city="Oslo")]<|python_end|>', OSLO)
    yield _case("Llama 4", "See [now (1)].", text="See [now (1)].")
    lists = {
        "Granite 3": ("<|tool_call|>", ""), "Hunyuan A13B": ("<tool_calls>", "</tool_calls>"), "xLAM": ("", ""),
        "Jamba": ("<tool_calls>", "</tool_calls>"), "Nemotron Nano 2": ("<TOOLCALL>", "</TOOLCALL>"),
        "Phi-4 mini": ("functools", ""),
    }  # fmt: skip
    for family, (start, end) in lists.items():
        yield _case(family, f"<think>a</think>{start}{_LIST}{end}", OSLO, NOW, thoughts="a")
        yield _case(family, "Only [1] and {x}.", text="Only [1] and {x}.")
    yield _case("Granite 3", "<think>a</think> <response>Ok.</response>", text="Ok.", thoughts="a")
    thinking = "Here is my thought process: a\n\nHere is my response:"
    yield _case("Granite 3.2", f"{thinking} Ok.", text="Ok.", thoughts="a")
    yield _case("Hunyuan A13B", "<think>\na\n</think>\n<answer>\nOk.\n</answer>", text="Ok.", thoughts="a")
    yield _case("Apriel", f"a\n[BEGIN FINAL RESPONSE]\nOk.\n<tool_calls>{_LIST}</tool_calls>", OSLO, NOW, text="Ok.", thoughts="a", in_thoughts=True)
    yield _case("Granite 20B", f"<function_call> {_JSON} <function_call> {_JSON_NOW}", OSLO, NOW)
    yield _case("Granite 20B", f'<function_call> {{"name": "get_weather", "argum {_JSON_NOW}', NOW, malformed=1)
    yield _case("Phi-4 mini", f"<|tool_call|>[{_JSON}]<|/tool_call|>", OSLO)
    yield _case("xLAM", f"Ok.\n```json\n[{_JSON}]\n```", OSLO, text="Ok.")
    yield _case("xLAM", 'So:\n```json\n{"a": 1}\n```', text='So:\n```json\n{"a": 1}\n```')
    action = '[\n {"tool_name": "get_weather", "parameters": {"city": "Oslo"}}\n]'
    yield _case("Command R+", f"Action:\n```json\n{action}\n```", OSLO)
    yield _case("DeepSeek V3, R1", f"<tool_call>\n{_JSON}\n</tool_call>", OSLO)
    yield _case("Gemma 4", "<|channel><|channel>thought\na<channel|>Ok.", text="Ok.", thoughts="a")
    twice = _XML.replace("</function>", "</function>\n</function>")
    yield _case("Qwen 3 Coder, Nemotron 3, Step 3.5", f"<tool_call>\n{twice}\n</tool_call>", OSLO)
    yield _case("MiniMax M2", f"<minimax:tool_call>{_INVOKE}</minimax:tool_call>".replace('"', "'"), OSLO)
    yield _case("Kimi K2", f"{section[0]}{_K2}{{'city': 'Oslo'}}<|tool_call_end|>{section[1]}", OSLO)
    yield _case("Mistral, Devstral", f'[TOOL_CALLS][{_JSON[:-1]}, "id": "123456789"}}]', OSLO)
    whole = '<|open|>json type="object"<|sep|>{"city": "Oslo"}<|close|>json<|sep|>'
    call = f'<|open|>call tool="get_weather" index="1"<|sep|>{whole}<|close|>call<|sep|>'
    yield _case("Kimi K3", f"<|open|>tools<|sep|>{call}<|close|>tools<|sep|>", OSLO)
    yield _case("InternLM 2", f"Ok.<|action_start|><|plugin|>\n{parameters}<|action_end|>", OSLO, text="Ok.")
    yield _case("GigaChat 3", f"Ok.<|message_sep|>\n\nfunction call<|role_sep|>\n{_JSON}<|message_sep|>", OSLO, text="Ok.")
    yield _case("GigaChat 3", f"<|function_call|>{_JSON}", OSLO)
    action = '[\n {"tool_call_id": "0", "tool_name": "get_weather", "parameters": {"city": "Oslo"}}\n]'
    yield _case("Command", f"<|START_THINKING|>a<|END_THINKING|><|START_ACTION|>{action}<|END_ACTION|>", OSLO, thoughts="a")
    yield _case("Command", "<|START_THINKING|>a<|END_THINKING|><|START_RESPONSE|>Ok.<|END_RESPONSE|>", text="Ok.", thoughts="a")
    yield _case("Apertus", '<|inner_prefix|>a<|inner_suffix|>Ok.<|tools_prefix|>[{"get_weather": {"city": "Oslo"}}, {"now": {}}]' "<|tools_suffix|>", OSLO, NOW, text="Ok.", thoughts="a")


def _others() -> Iterator[Written]:
    yield _case("gpt-oss", "It is 4 degrees.", text="It is 4 degrees.")
    yield _case("gpt-oss", "Use <|message|> so.<|end|>", text="Use <|message|> so.")
    yield _case("gpt-oss", "<|channel|>analysis only thoughts", thoughts="only thoughts")
    yield _case("gpt-oss", f"<|channel|>analysis<|message|>One.{_MESSAGE}analysis<|message|>Two.{_MESSAGE}final<|message|>Ok.", text="Ok.", thoughts="One.\nTwo.")
    for header in ("commentary to=functions.get_weather <|constrain|>json", "commentary to=functions.get_weather json",
                   "commentary to=functions.get_weatherjson", "analysis to=get_weather code", "get_weather<|channel|>commentary",
                   "commentary to=functions.get_weather<|channel|>commentary"):  # fmt: skip
        yield _case("gpt-oss", f'<|channel|>{header}<|message|>{{"city": "Oslo"}}<|call|>', OSLO)
    yield _case("gpt-oss", " to=functions.now<|channel|>commentary<|message|><|call|>", NOW)
    call = '<|channel|>commentary to=functions.get_weather <|constrain|>json<|message|>{"city": "Oslo"}'
    for end in ("<|call|>", "<|call|>\n", "\n", "<|end|><|start|>assistant"):
        yield _case("gpt-oss", f"{call}{end}{call}{end}<|channel|>final<|message|>Ok.", OSLO, OSLO, text="Ok.")
    yield _case("gpt-oss", "<|channel|>analysis<|message|>a<|channel|>final<|message|>Ok.", text="Ok.", thoughts="a")
    yield _case("gpt-oss", "<|channel|>commentary to=assistant<|message|>Hi.<|end|>", text="Hi.")
    yield _case("gpt-oss", "<|channel|>commentary to=functions.now<|message|>{broken<|call|>", malformed=1)
    yield _case("gpt-oss", '<|channel|>commentary to=functions.maps.get-weather/v2<|message|>{"city-name": "x", "$top": 3}', NAMED)
    start, end, quote = "<|tool_call>", "<tool_call|>", '<|"|>'
    for inside in (f"{{city:{quote}Oslo{quote},days:3}}", f"{{\n  city: {quote}Oslo{quote},\n  days: 3}}", "{city:'Oslo',days:3}",
                   '{"city":"Oslo","days":3}', "{city:Oslo,days:3}", "(city='Oslo',days=3)"):  # fmt: skip
        yield _case("Gemma 4", f"Ok.{start}call:get_weather{inside}{end}", OSLO_3, text="Ok.")
    yield _case("Gemma 4", f"{start}get_weather{{city:{quote}Oslo{quote}}}{end}", OSLO)
    yield _case("Gemma 4", f"{start}:now{{}}{end}{start}call:now{{}}", NOW, NOW)
    yield _case("Gemma 4", f"{start}call:maps.get-weather/v2{{city-name:{quote}x{quote},$top:3}}{end}", NAMED)
    yield _case("Gemma 4", f"{start}call:get_weather{{city:{quote}Oslo{quote},note:None}}{end}", ("get_weather", {"city": "Oslo", "note": None}))
    yield _case("Gemma 4", f"{start}call:bad no brace{end}{start}call:now{{}}{end}", NOW, malformed=1)
    yield _case("Gemma 4", "<|channel>thought\na<channel|>Ok.<channel|>", text="Ok.", thoughts="a")
    yield _case("Gemma 4", "thought\na<channel|>Ok.", text="Ok.", thoughts="a", in_thoughts=True)
    yield _case("Gemma 4", "<|channel>response\nOk.", text="Ok.")
    start, end = "<|tool_call_start|>", "<|tool_call_end|>"
    yield _case("LFM2", f"Ok. {start}[get_weather(city='Oslo', days=3), now()]{end} Done.", OSLO_3, NOW, text="Ok. Done.")
    yield _case("LFM2", f"{start}[now()]{end}Done (all), {{x}}.", NOW, text="Done (all), {x}.")
    yield _case("LFM2", f"{start}[maps.get-weather/v2(city-name='x', $top=3)]{end}", NAMED)
    yield _case("LFM2", f"{start}[{_JSON}]{end}", OSLO)
    yield _case("LFM2", f"{start}{_JSON}{end}", OSLO)
    yield _case("LFM2", f"{start}[write_file(path='a', content='sed -n '1,5p' f')]{end}", _written("a", "sed -n '1,5p' f"))
    yield _case("LFM2", f"{start}get_weather(city='Oslo'){end}", OSLO)
    yield _case("LFM2", f"{start}[get_weather(city='Oslo', units={{'C'}}, note=None)]{end}", ("get_weather", {"city": "Oslo", "units": ["C"], "note": None}))
    yield _case("OLMo 3", '<think>a</think><function_calls>get_weather(city="Oslo")\nnow()</function_calls>', OSLO, NOW, thoughts="a")


# fmt: on

CASES = (*_hermes_and_qwen(), *_tagged(), *_in_json(), *_others())
