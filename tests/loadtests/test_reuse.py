"""The theoretical maximum of a prefix cache, against a search through all earlier prompts and answers."""

from __future__ import annotations

import time
from itertools import takewhile

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from loadtests.prompts import Prompts
from loadtests.reuse import ReuseIndex
from tests.examples import examples

Messages = list[dict[str, str]]


def message(role: str, content: str) -> dict[str, str]:
    return {"role": role, "content": content}


def characters(messages: Messages) -> list[tuple[int, str, str]]:
    """Return each character with its message's number and role, and each message's beginning without a
    character."""
    return [
        (number, one["role"], character)
        for number, one in enumerate(messages)
        for character in ["", *one["content"]]
    ]


def brute_force(messages: Messages, earlier: list[Messages]) -> float:
    total = sum(len(one["content"]) for one in messages)
    most = 0
    for other in earlier:
        both = zip(characters(messages), characters(other), strict=False)
        common = [a for a, _ in takewhile(lambda pair: pair[0] == pair[1], both)]
        most = max(most, sum(bool(character) for _, _, character in common))
    return most / total if total else 0.0


prompts = st.lists(
    st.builds(message, st.sampled_from(["user", "system"]), st.text(alphabet="ab", max_size=6)), max_size=4
)


@settings(derandomize=True, deadline=None, max_examples=examples(300))
@given(said=st.lists(prompts, max_size=12))
def test_the_share_is_the_longest_common_prefix_with_anything_earlier(said: list[Messages]) -> None:
    """On prompts that share much, from two letters and two roles."""
    index = ReuseIndex()
    for number, messages in enumerate(said):
        assert index.add(messages) == brute_force(messages, said[:number])


@settings(derandomize=True, deadline=None)
@given(text=st.text(), more=st.text(min_size=1))
def test_a_repetition_is_all_there(text: str, more: str) -> None:
    """Any text; the text after it is not counted."""
    index = ReuseIndex()
    assert index.add([message("user", text)]) == 0.0
    assert index.add([message("user", text)]) == (1.0 if text else 0.0)
    assert index.add([message("user", text + more)]) == len(text) / len(text + more)


def test_messages_do_not_run_into_each_other() -> None:
    """The same characters under another role, or cut elsewhere, are another prompt."""
    index = ReuseIndex()
    index.add([message("user", "ab")])
    assert index.add([message("system", "ab")]) == 0.0
    assert index.add([message("user", "a"), message("user", "b")]) == 0.5


def test_a_long_conversation_costs_what_is_new() -> None:
    """64 sessions of 16 turns over 32 KB of common text, in far less time than serving them takes."""
    writer, index = Prompts("salt", 1.0), ReuseIndex()
    shared = message("system", writer.text(6000, "shared"))
    started = time.process_time()
    for session in range(64):
        history = [shared]
        for turn in range(16):
            history += [message("user", writer.text(100, session, turn))]
            share = index.add(history)
            history += [message("assistant", "so it is")]
            index.add(history)
            assert share == pytest.approx(1.0, abs=0.05) or session == turn == 0
    assert time.process_time() - started < 10
