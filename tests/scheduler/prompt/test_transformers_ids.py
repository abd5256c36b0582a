"""A prompt has the token ids that transformers gives it, for each kind of tokenizer and each place of a
template."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import AutoTokenizer

from scheduler.prompt.tokenizer import HubTokenizer
from scheduler.request import ChatPrompt, Message, Tool
from tests.examples import examples
from tests.fakes.served_tokenizers import KINDS, TEMPLATE, TEXTS, write_tokenizer

_TOOLS = (
    "{% for t in tools or [] %}<tool_call>{{ t | tojson }}{% endfor %}"
    "{% for m in messages %}<|{{ m.role }}|>{{ m.content }}</s>"
    "{% for tool_call in m.tool_calls or [] %}{{ tool_call.name }}{% endfor %}{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>{% endif %}"
)
_PLACES = ("tokenizer_config.json", "chat_template.jinja", "chat_template.json", "a list", "further files")
_MESSAGES: tuple[Message, ...] = (
    {"role": "system", "content": "The café reads."},
    {"role": "user", "content": "Hello, how are you?\n yes"},
    {"role": "assistant", "content": " again"},
    {"role": "user", "content": "你好 🦊"},
)
_TOOL = Tool("look", "Looks.", {"type": "object", "properties": {}})


def _placed(folder: Path, kind: str, place: str) -> None:
    """Write the templates there: one, or one for tools besides."""
    named = [{"name": "default", "template": TEMPLATE}, {"name": "tool_use", "template": _TOOLS}]
    given: Any = {"tokenizer_config.json": TEMPLATE, "a list": named}.get(place)
    write_tokenizer(folder, kind, template=given)
    match place:
        case "chat_template.jinja":
            (folder / place).write_text(TEMPLATE)
        case "chat_template.json":
            (folder / place).write_text(json.dumps({"chat_template": TEMPLATE}))
        case "further files":
            (folder / "chat_template.jinja").write_text(TEMPLATE)
            (folder / "additional_chat_templates").mkdir()
            (folder / "additional_chat_templates" / "tool_use.jinja").write_text(_TOOLS)
        case _:
            pass


@cache
def _both(kind: str) -> tuple[HubTokenizer, Any]:
    with TemporaryDirectory() as folder:
        _placed(Path(folder), kind, "tokenizer_config.json")
        return HubTokenizer(Path(folder)), AutoTokenizer.from_pretrained(folder)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("place", _PLACES)
def test_a_conversation_has_the_ids_of_transformers(place: str, kind: str, tmp_path: Path) -> None:
    """With and without tools; transformers is given `chat_template.json`, which its processors read."""
    _placed(tmp_path, kind, place)
    ours, theirs = HubTokenizer(tmp_path), AutoTokenizer.from_pretrained(tmp_path)
    given = TEMPLATE if place == "chat_template.json" else None
    with_tools = place in ("a list", "further files")
    for tools in ((), (_TOOL,)) if with_tools else ((),):
        expected = theirs.apply_chat_template(
            [dict(message) for message in _MESSAGES],
            tools=[tool.definition() for tool in tools] or None,
            chat_template=given,
            add_generation_prompt=True,
            return_dict=False,
        )
        assert ours.encode(ours.render(ChatPrompt(_MESSAGES, tools=tools))) == expected


@pytest.mark.parametrize("kind", KINDS)
@given(st.text(st.sampled_from([*"".join(TEXTS), *"<|/s>user", "\N{NO-BREAK SPACE}", "\u0301"])))
@settings(max_examples=examples(15))
def test_a_text_has_the_ids_of_transformers(kind: str, text: str) -> None:
    """Alone, and as a whole with what the tokenizer puts around it."""
    ours, theirs = _both(kind)
    assert ours.encode(text) == theirs(text, add_special_tokens=False)["input_ids"]
    assert ours.encode_whole(text) == theirs(text)["input_ids"]
