"""Chat templates composed of what real ones do, and conversations of any order: for properties."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

from hypothesis import strategies as st

from scheduler.request import ChatPrompt, Message, Tool

TOOL = Tool("look", "Looks.", {"type": "object", "properties": {}})
_FORMS = {
    "text": "{{ m.content }}",
    "trimmed": "{{ m.content | trim }}",
    "parts": "{% for part in m.content %}{{ part['text'] }}{% endfor %}",
    "typed parts": "{% for part in m.content | selectattr('type', 'equalto', 'text') %}{{ part.text }}"
    "{% endfor %}",
    "either": "{% if m.content is string %}{{ m.content }}{% else %}{{ m.content[0]['text'] }}{% endif %}",
    "first part": "{{ m.content[0]['text'] }}",
}
"""How a template reads a message; text only, parts only, or both."""
_ORDERS = {
    "any": "",
    "strict": "{% if m.role == ns.last and m.role in ('user', 'assistant') or ns.last == '' and m.role == "
    "'assistant' %}{{ raise_exception('Conversation roles must alternate') }}{% endif %}",
    "late system": "{% if m.role == 'system' and ns.last != '' %}{{ raise_exception('System first') }}"
    "{% endif %}",
}
_SKIPS = {
    "nothing": "true",
    "neighbours": "m.role != ns.last",
    "an answer first": "ns.last != '' or m.role != 'assistant'",
    "history": "loop.last or m.role != 'user'",
    "answers": "m.role != 'assistant'",
}
"""What is left out without a word: each message for which this does not hold."""
_OF_LAST = (
    "{% for m in messages if m.role == 'system' %}{% set ns.system = m.content %}{% endfor %}{{ ns.system }}"
)
_SYSTEMS = {
    "own turn": ("", "", "<|system|>{words}"),
    "raises": ("", "", "{{{{ raise_exception('System role not supported') }}}}"),
    "dropped": ("", "", ""),
    "last question": (
        "",
        "{% if loop.last and ns.system %}{{ ns.system }} {% endif %}",
        "{{% set ns.system = m.content %}}",
    ),
    "first question": (
        "",
        "{% if ns.system %}{{ ns.system }} {% set ns.system = '' %}{% endif %}",
        "{{% set ns.system = m.content %}}",
    ),
    "last one alone": (_OF_LAST, "", ""),
}
"""What stands before all messages, in a question, and in the place of the system message."""
_RESULTS = {
    "written": "<|tool|>{words}",
    "raises": "{{{{ raise_exception('Only user and assistant roles') }}}}",
    "dropped": "",
    "with tools": "{{% if tools %}}<|tool|>{words}{{% endif %}}",
}
_TOOLS = {
    "none": "",
    "listed": "{% for t in tools or [] %}{{ t.function.name }} <tool_call>{% endfor %}",
}
_CALLS = "{% for tool_call in m.tool_calls or [] %}<tool_call>{{ tool_call.function.name }}{% endfor %}"


@dataclass(frozen=True)
class Composed:
    """`template` is as tokenizer_config.json has it: a text, or a list of named ones."""

    template: Any
    described: str
    plain: bool
    """Whether it is one that takes every conversation in some order."""


@st.composite
def _single(draw: st.DrawFn) -> Composed:
    form = {role: draw(st.sampled_from(sorted(_FORMS))) for role in ("user", "assistant", "system", "tool")}
    order, system = draw(st.sampled_from(sorted(_ORDERS))), draw(st.sampled_from(sorted(_SYSTEMS)))
    plain, skip, result = draw(st.booleans()), "nothing", "written"
    if not plain:
        skip, result = draw(st.sampled_from(sorted(_SKIPS))), draw(st.sampled_from(sorted(_RESULTS)))
    tools = draw(st.sampled_from(sorted(_TOOLS)))
    before, in_question, own = _SYSTEMS[system]
    if in_question or before:
        form["system"] = "text"
    words = {role: _FORMS[chosen] for role, chosen in form.items()}
    template = "".join(
        (
            f"{{% set ns = namespace(last='', system='') %}}{before}{_TOOLS[tools]}",
            f"{{% for m in messages %}}{_ORDERS[order]}",
            f"{{% if m.role == 'system' %}}{own.format(words=words['system'])}",
            f"{{% elif {_SKIPS[skip]} %}}",
            f"{{% if m.role == 'user' %}}<|user|>{in_question}{words['user']}",
            "{% elif m.role == 'assistant' %}<|assistant|>",
            f"{{% if m.content %}}{words['assistant']}{{% endif %}}{_CALLS}",
            f"{{% elif m.role == 'tool' %}}{_RESULTS[result].format(words=words['tool'])}",
            "{% endif %}</s>{% endif %}",
            "{% if m.role != 'system' %}{% set ns.last = m.role %}{% endif %}{% endfor %}",
            "{% if add_generation_prompt %}<|assistant|>{% endif %}",
        )
    )
    described = f"{form}, {order}, skips {skip}, system {system}, results {result}, tools {tools}"
    return Composed(template, described, plain)


@st.composite
def templates(draw: st.DrawFn) -> Composed:
    """One template, or in a third of the cases one for tools beside it."""
    one = draw(_single())
    if draw(st.integers(0, 2)):
        return one
    other = draw(_single())
    named = [{"name": "default", "template": one.template}, {"name": "tool_use", "template": other.template}]
    return Composed(named, f"{one.described}; with tools: {other.described}", plain=False)


Turn = Literal["system", "user", "assistant", "called"]
_turns: st.SearchStrategy[list[Turn]] = st.lists(
    st.sampled_from(("system", "user", "user", "assistant", "assistant", "called")), min_size=1, max_size=6
)


@st.composite
def conversations(draw: st.DrawFn) -> ChatPrompt:
    """Messages in any order, each with words of its own; a called tool has one or two results."""
    messages: list[Message] = []

    def words() -> str:
        return f"word-{len(messages)}."

    for turn in draw(_turns):
        if turn != "called":
            messages.append({"role": turn, "content": words()})
            continue
        count = draw(st.integers(1, 2))
        calls = [
            {"id": f"penstock{number}", "type": "function", "function": {"name": TOOL.name, "arguments": {}}}
            for number in range(count)
        ]
        messages.append({"role": "assistant", "content": "", "tool_calls": calls})
        for call in calls:
            answers = {"tool_call_id": call["id"], "name": TOOL.name}
            messages.append({"role": "tool", "content": words(), **answers})
    continues = messages[-1]["role"] == "assistant" and bool(messages[-1]["content"]) and draw(st.booleans())
    return ChatPrompt(tuple(messages), tools=(TOOL,) if draw(st.booleans()) else (), continue_final=continues)


_IDS = {
    "any": "<tool_call>{{ tool_call.function.name }}#{{ tool_call.id }}#",
    "nine letters": "{% if tool_call.id | length != 9 %}{{ raise_exception('nine letters') }}{% endif %}"
    "<tool_call>{{ tool_call.function.name }}#{{ tool_call.id }}#",
    "the name's place": "<tool_call>#{{ tool_call.id }}#",
}
_COUNTS = {
    "all": "{% for tool_call in m.tool_calls %}{call}{% endfor %}",
    "the first": "{% set tool_call = m.tool_calls[0] %}{call}",
    "one": "{% if m.tool_calls | length > 1 %}{{ raise_exception('one') }}{% endif %}"
    "{% set tool_call = m.tool_calls[0] %}{call}",
    "none": "",
}
_BESIDE = {
    "written": "{{ m.content }}",
    "dropped": "",
    "not with thoughts": "{% if m.content and m.thinking %}{{ raise_exception('both') }}{% endif %}"
    "{{ m.content }}",
}
_THOUGHTS = {
    "reasoning_content": "{{ m.reasoning_content }}",
    "thinking": "{{ m.thinking }}",
    "another name": "{{ m.reasoning }}",
    "parts": "{% if m.content is not string %}{% for p in m.content if p.type == 'thinking' %}"
    "{{ p.thinking }}{% endfor %}{% endif %}",
    "dropped": "",
}
_PARTS = (
    "{% if m.content is string %}{text}{% else %}{% for p in m.content if p.type == 'text' %}{{ p.text }}"
    "{% endfor %}{% endif %}"
)
HISTORIES = {
    "ids": _IDS,
    "calls": _COUNTS,
    "beside": _BESIDE,
    "thoughts": _THOUGHTS,
    "tools": ("any", "in system"),
}
"""What templates differ in when they write an answer's parts in a history."""
FAMILIES = {
    "Qwen3": ("any", "all", "written", "reasoning_content", "any"),
    "gpt-oss": ("any", "the first", "not with thoughts", "thinking", "any"),
    "Mistral Small 3.2": ("nine letters", "all", "dropped", "dropped", "any"),
    "Kimi K2": ("the name's place", "all", "written", "reasoning_content", "any"),
    "LFM2": ("any", "none", "written", "dropped", "any"),
    "DeepSeek V3.2": ("any", "all", "written", "reasoning_content", "in system"),
}
"""Values of HISTORIES, by a family whose template has them."""


def history_template(ids: str, calls: str, beside: str, thoughts: str, tools: str) -> str:
    """A template that takes an answer's thoughts, text and calls in these ways."""
    listed = "{% for t in tools or [] %}{{ t.function.name }};{% endfor %}"
    anywhere, in_system = (listed, "") if tools == "any" else ("", listed)
    text = _PARTS if thoughts == "parts" else "{text}"
    return "".join(
        (
            f"{anywhere}{{% for m in messages %}}{{% if m.role == 'system' %}}{{{{ m.content }}}}{in_system}",
            "{% elif m.role == 'user' %}<|user|>{{ m.content }}",
            "{% elif m.role == 'tool' %}<|tool|>{{ m.name }}#{{ m.tool_call_id }}#{{ m.content }}",
            f"{{% else %}}<|assistant|>{_THOUGHTS[thoughts]}{{% if m.tool_calls %}}",
            text.replace("{text}", _BESIDE[beside]) if beside != "dropped" else "",
            _COUNTS[calls].replace("{call}", _IDS[ids] + "{{ tool_call.function.arguments | tojson }}"),
            "{% else %}"
            + text.replace("{text}", "{{ m.content }}")
            + "{% endif %}{% endif %}</s>{% endfor %}",
            "{% if add_generation_prompt %}<|assistant|>{% endif %}",
        )
    )


@st.composite
def loops(draw: st.DrawFn) -> ChatPrompt:
    """Ten turns of an agent: thoughts, text and calls, each or together, results in any order, ids of any
    server, which may be there twice."""
    messages: list[Message] = [{"role": "user", "content": "word-0."}]
    for _ in range(10):
        number = len(messages)
        thinks, speaks, count = draw(st.booleans()), draw(st.booleans()), draw(st.integers(0, 2))
        answer: Message = {"role": "assistant", "content": f"text-{number}." if speaks or not count else ""}
        if thinks:
            answer["reasoning_content"] = f"thought-{number}."
        messages.append(answer)
        if not count:
            messages.append({"role": "user", "content": f"word-{number}."})
            continue
        ids = draw(
            st.sampled_from(
                [("call_{}", "toolu_01{}"), ("functions.look:0", "functions.look:1"), ("a1b2c3d4e",) * 2]
            )
        )
        calls = [
            (ids[at].format(number), f"value-{number}-{at}.", f"result-{number}-{at}.") for at in range(count)
        ]
        answer["tool_calls"] = [
            {"id": own, "type": "function", "function": {"name": TOOL.name, "arguments": {"of": value}}}
            for own, value, _ in calls
        ]
        results = [{"role": "tool", "content": result, "tool_call_id": own} for own, _, result in calls]
        # Of two calls with one id nobody knows whose result is whose.
        messages += draw(st.permutations(results)) if len(set(ids)) == 2 else results
    return ChatPrompt(tuple(messages), tools=(TOOL,))
