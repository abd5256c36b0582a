"""Random conversations of agents, and how they go on: they grow, change in the middle, lose messages."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from hypothesis import strategies as st

from scheduler.request import Message

texts = st.one_of(
    st.sampled_from(
        ["", "yes", " \n spaced ", "<think>\nso\n</think>\n\nyes", "</think>", "<tool_response>x</"]
    ),
    st.sampled_from(["1", "True", "\u4f60\u597d \U0001f440", "e\u0301", "{{ x }}", "<|im_end|>", "/nothink"]),
    st.text(max_size=4),
)
# Equal to each other in Python, and other texts.
_equal = st.sampled_from([1, 1.0, True, 0, False, -0.0, None, "1", 10**20, 2.5])
values: st.SearchStrategy[Any] = st.recursive(
    st.one_of(_equal, texts),
    lambda inner: st.one_of(
        st.lists(inner, max_size=2), st.dictionaries(st.sampled_from("abc"), inner, max_size=2)
    ),
    max_leaves=4,
)
_calls = st.builds(
    lambda name, arguments: {
        "type": "function",
        "id": "call00001",
        "function": {"name": name, "arguments": arguments},
    },
    st.sampled_from(["read", "edit"]),
    st.dictionaries(st.sampled_from(["path", "old", "new"]), values, max_size=2),
)
tools = st.builds(
    lambda name, described: {
        "type": "function",
        "function": {"name": name, "description": described, "parameters": {"type": "object"}},
    },
    st.sampled_from(["read", "edit"]),
    texts,
)
_parts = st.lists(
    st.one_of(st.just({"type": "image"}), st.builds(lambda text: {"type": "text", "text": text}, texts)),
    max_size=2,
)
_user: st.SearchStrategy[Message] = st.builds(
    lambda content: {"role": "user", "content": content}, st.one_of(texts, texts, texts, _parts)
)
_assistant: st.SearchStrategy[Message] = st.fixed_dictionaries(
    {"role": st.just("assistant"), "content": texts},
    optional={
        "tool_calls": st.lists(_calls, max_size=2),
        "reasoning_content": st.one_of(texts, st.none()),
    },
)
_result: st.SearchStrategy[Message] = st.builds(
    lambda content: {"role": "tool", "content": content, "tool_call_id": "call00001"}, texts
)
_system: st.SearchStrategy[Message] = st.builds(lambda content: {"role": "system", "content": content}, texts)
_messages = st.one_of(_user, _assistant, _assistant, _result)


@st.composite
def histories(draw: st.DrawFn) -> list[list[Message]]:
    """The messages of one conversation, turn by turn."""
    messages = [*draw(st.lists(_system, max_size=1)), draw(_user)]
    turns = [messages]
    for step in draw(st.lists(st.sampled_from("ggggcl"), max_size=5)):
        messages = _next(draw, list(messages), step)
        turns.append(messages)
    return turns


def _next(draw: st.DrawFn, messages: list[Message], step: str) -> list[Message]:
    at = draw(st.integers(0, len(messages) - 1))
    match step:
        case "c":
            messages[at] = draw(_messages)
        case "l" if len(messages) > 1:
            del messages[at]
        case _:
            messages += draw(st.lists(_messages, min_size=1, max_size=3))
    return messages


def agent(turns: int) -> Sequence[Message]:
    """A question, and as many calls with their results."""
    asked: list[Message] = [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "Mend it."},
    ]
    for number in range(turns):
        call = {
            "type": "function",
            "id": "call00001",
            "function": {"name": "read", "arguments": {"path": f"/{number}", "deep": True}},
        }
        asked.append({"role": "assistant", "content": f"Step {number}", "tool_calls": [call]})
        asked.append({"role": "tool", "content": f"result {number}", "tool_call_id": "call00001"})
    return asked
