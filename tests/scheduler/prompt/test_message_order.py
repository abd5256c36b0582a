"""Agents' conversations with strict templates: the order of messages is adapted."""

from __future__ import annotations

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from scheduler.prompt.chat_template import alternating, strict
from scheduler.request import Message


def test_answers_in_a_row_are_one_with_all_thoughts_and_calls() -> None:
    """Two agents may answer in turn, and one in two messages."""
    messages: tuple[Message, ...] = (
        {"role": "user", "content": "a"},
        {"role": "assistant", "content": "b", "reasoning_content": "hm"},
        {"role": "assistant", "content": "", "tool_calls": [1]},
        {"role": "assistant", "content": "c", "tool_calls": [2]},
    )
    joined = {"content": "b\n\nc", "reasoning_content": "hm", "tool_calls": [1, 2]}
    assert strict(messages) == (messages[0], {"role": "assistant", **joined})


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
