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


@st.composite
def _single(draw: st.DrawFn) -> tuple[str, str]:
    form = {role: draw(st.sampled_from(sorted(_FORMS))) for role in ("user", "assistant", "system", "tool")}
    order, skip = draw(st.sampled_from(sorted(_ORDERS))), draw(st.sampled_from(sorted(_SKIPS)))
    system, result = draw(st.sampled_from(sorted(_SYSTEMS))), draw(st.sampled_from(sorted(_RESULTS)))
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
    return template, f"{form}, {order}, skips {skip}, system {system}, results {result}, tools {tools}"


@st.composite
def templates(draw: st.DrawFn) -> Composed:
    """One template, or in a third of the cases one for tools beside it."""
    template, described = draw(_single())
    if draw(st.integers(0, 2)):
        return Composed(template, described)
    other, tooled = draw(_single())
    named = [{"name": "default", "template": template}, {"name": "tool_use", "template": other}]
    return Composed(named, f"{described}; with tools: {tooled}")


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
