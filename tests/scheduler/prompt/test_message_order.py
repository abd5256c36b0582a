"""Agents' conversations with strict templates: the order of messages is adapted."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from typing import Any

from hypothesis import given
from hypothesis import strategies as st
from transformers import AutoTokenizer

from scheduler.models.random_qwen3 import TOKENIZER_FOLDER
from scheduler.prompt.chat_template import alternating, renderer, strict
from scheduler.prompt.template_reading import fitted, reading_of
from scheduler.request import ChatPrompt, Message

# As Qwen3.5 and Gemma write theirs.
SYSTEM_FIRST = (
    "{% for m in messages %}{% if m.role == 'system' and not loop.first %}"
    "{{ raise_exception('System message must be at the beginning.') }}{% endif %}"
    "<{{ m.role }}>{{ m.content }}\n{% endfor %}<assistant>"
)
ALTERNATING = (
    "{% if messages[0].role == 'system' %}<system>{{ messages[0].content }}\n"
    "{% set messages = messages[1:] %}{% endif %}"
    "{% for m in messages %}{% if (m.role == 'user') != (loop.index0 % 2 == 0) %}"
    "{{ raise_exception('Conversation roles must alternate user/assistant/user/assistant/...') }}{% endif %}"
    "<{{ m.role }}>{{ m.content }}\n{% endfor %}<assistant>"
)
OPENCODE: tuple[Message, ...] = (
    {"role": "system", "content": "You write titles."},
    {"role": "user", "content": "Generate a title:"},
    {"role": "user", "content": "What does note.txt say?"},
)


def rendered(template: str, *messages: Message) -> str:
    tokenizer: Any = AutoTokenizer.from_pretrained(Path(TOKENIZER_FOLDER))
    tokenizer.chat_template = template
    render = renderer(tokenizer, None)
    assert render is not None
    return fitted(render, reading_of(render))(ChatPrompt(messages))


@given(
    st.lists(
        st.fixed_dictionaries(
            {
                "role": st.sampled_from(["system", "user", "assistant", "tool"]),
                "content": st.text("ab", max_size=3),
            }
        )
    ).map(tuple)
)
def test_every_word_stays_in_its_place(messages: tuple[Message, ...]) -> None:
    """One system message at most, first; no two users in a row; a second application changes nothing. In the
    strictest order no two answers are neighbours, either, and none comes first."""
    changed = alternating(messages)
    roles = [message["role"] for message in changed]
    assert "system" not in roles[1:]
    assert ("user", "user") not in list(pairwise(roles))
    said = "".join(message["content"] for message in changed)
    assert said.replace("\n\n", "") == "".join(message["content"] for message in messages)
    assert alternating(changed) == changed
    turns = strict(messages)
    roles = [message["role"] for message in turns if message["role"] != "system"]
    assert roles[:1] != ["assistant"]
    assert not {("user", "user"), ("assistant", "assistant")} & set(pairwise(roles))
    text = "".join(message["content"] for message in turns)
    assert text.replace("\n\n", "") == "".join(message["content"] for message in messages)
    assert strict(turns) == turns


def test_many_turns_of_one_speaker_are_joined_once() -> None:
    """Joined one by one, 80,000 of them would copy their text as often: minutes."""
    (turn,) = alternating([{"role": "user", "content": "x" * 50}] * 80_000)
    assert turn["content"].count("\n\n") == 79_999
