"""Tools in the prompts of models whose chat template has none."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import AutoTokenizer

from scheduler.models.random_qwen3 import TOKENIZER_FOLDER
from scheduler.prompt.chat_template import Renderer, renderer
from scheduler.prompt.generic_tools import description, has_system_turn, rewritten
from scheduler.prompt.template_reading import fitted, reading_of
from scheduler.prompt.tokenizer import HubTokenizer
from scheduler.request import ChatPrompt, Message
from tests.examples import examples
from tests.fakes.served_tokenizers import write_tokenizer
from tests.scheduler.prompt.composed_templates import loops
from tests.scheduler.prompt.test_chat_template import CALL, TOOL, TURN

CHATML = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
# As Gemma 2's: no system, strict turns, other names.
NO_SYSTEM = (
    "{% if messages[0].role == 'system' %}{{ raise_exception('System role not supported') }}{% endif %}"
    "{% for m in messages %}{% if (m.role == 'user') != (loop.index0 % 2 == 0) %}"
    "{{ raise_exception('Conversation roles must alternate') }}{% endif %}"
    "<turn>{{ 'model' if m.role == 'assistant' else m.role }}\n{{ m.content | trim }}<end>\n{% endfor %}"
    "{% if add_generation_prompt %}<turn>model\n{% endif %}"
)
# As Mistral's of 2023: the system prompt stands in the last question.
SYSTEM_LAST = (
    "{% if messages[0].role == 'system' %}{% set system = messages[0].content %}"
    "{% set messages = messages[1:] %}{% endif %}{% for m in messages %}"
    "{% if m.role == 'user' %}[INST] {% if loop.last and system %}{{ system }}\n\n{% endif %}{{ m.content }}"
    "[/INST]{% elif m.role == 'assistant' %} {{ m.content }}</s>"
    "{% else %}{{ raise_exception('Only user and assistant roles') }}{% endif %}{% endfor %}"
)
SYSTEM_DROPPED = (
    "{% for m in messages if m.role in ('user', 'assistant') %}<{{ m.role }}>{{ m.content }}\n{% endfor %}"
    "{% if add_generation_prompt %}<assistant>{% endif %}"
)
WITH_TOOLS = "{% for tool in tools or [] %}<tool>{{ tool | tojson }}{% endfor %}" + CHATML
MENTIONS_CALLS = "{# <tool_call> tool_call.name #}" + CHATML
TEMPLATES = {"chatml": CHATML, "no_system": NO_SYSTEM, "system_last": SYSTEM_LAST, "dropped": SYSTEM_DROPPED}
BY_TEMPLATE = pytest.mark.parametrize("name", TEMPLATES)


@cache
def render_of(template: str) -> Renderer:
    tokenizer: Any = AutoTokenizer.from_pretrained(Path(TOKENIZER_FOLDER))
    tokenizer.chat_template = template
    render = renderer(tokenizer, None)
    assert render is not None
    return fitted(render, reading_of(render))


@cache
def system_turn(template: str) -> bool:
    return has_system_turn(render_of(template))


def rendered(template: str, prompt: ChatPrompt) -> str:
    return render_of(template)(rewritten(prompt, system_turn=system_turn(template)))


def test_a_template_without_a_system_role_has_all_in_the_first_question() -> None:
    """And what follows each other in one role is one turn."""
    assert not system_turn(NO_SYSTEM)
    turns: tuple[Message, ...] = (
        *TURN[:2],
        {"role": "assistant", "content": "I look.", "tool_calls": [CALL, CALL]},
        {"role": "tool", "content": "12:00", "tool_call_id": "1"},
        {"role": "tool", "content": "13:00", "tool_call_id": "2"},
        {"role": "user", "content": "Well?"},
    )
    call = '<tool_call>\n{"name": "get_time", "arguments": {"zone": "UTC"}}\n</tool_call>'
    assert rendered(NO_SYSTEM, ChatPrompt(turns, tools=(TOOL,))) == (
        f"<turn>user\nBe kind.\n\n{description((TOOL,))}\n\nWhat time is it?<end>\n"
        f"<turn>model\nI look.\n{call}\n{call}<end>\n"
        "<turn>user\n<tool_response>\n12:00\n</tool_response>\n\n<tool_response>\n13:00\n</tool_response>"
        "\n\nWell?<end>\n<turn>model\n"
    )


@BY_TEMPLATE
@settings(deadline=None, max_examples=examples(60))
@given(prompt=loops(), told=st.sampled_from([0, 1, 2]))
def test_each_turns_prompt_begins_with_the_one_before(name: str, prompt: ChatPrompt, told: int) -> None:
    """So that the prefix cache has all of it. `told`: where a system message stands, if there is one."""
    messages = list(prompt.messages)
    if told:
        messages.insert(told - 1, {"role": "system", "content": "be kind"})
    asked = [place for place, one in enumerate(messages) if one["role"] == "assistant"]
    prompts = [
        rendered(TEMPLATES[name], replace(prompt, messages=tuple(messages[:count])))
        for count in [*asked, len(messages)]
    ]
    for before, after in pairwise(prompts):
        assert after.startswith(before)


@pytest.mark.parametrize(
    ("template", "option", "wanted"),
    [
        (CHATML, "auto", "generic"),
        (CHATML, "none", "none"),
        (CHATML, "json_tools", "native"),
        (WITH_TOOLS, "auto", "generic"),
        (WITH_TOOLS.replace("<tool>", "<tool_call>tool_call.name"), "auto", "native"),
        (MENTIONS_CALLS, "auto", "generic"),
        (None, "auto", "none"),
    ],
)
def test_a_model_is_native_generic_or_without(
    tmp_path: Path, template: str | None, option: str, wanted: str
) -> None:
    """By its template and whether a parser of its syntax is known; the operator's word goes before."""
    write_tokenizer(tmp_path, "byte-level", template=template)
    tokenizer = HubTokenizer(tmp_path, tool_parser=option)
    assert tokenizer.answer_format.tool_calls == wanted
    if template is not None:
        offered = "# Tools" in tokenizer.render(ChatPrompt(TURN[:2], tools=(TOOL,)))
        assert offered == (wanted == "generic")
