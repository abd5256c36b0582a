"""Custom tools and the API's own: offered as functions, called as what the client knows."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from trio.testing import MockClock, trio_test

from api.answers.input_text import InputText, input_text
from tests.api.client import prompts, served
from tests.api.dialects.test_chat_tools import HERMES, ask
from tests.api.transcripts import named_events, response_of
from tests.fakes.playback import Playback

PATCH = '*** Begin Patch\n+"é\\n"\n*** End Patch'
FORMAT = {"type": "grammar", "syntax": "lark", "definition": 'start: "*** Begin Patch" /(.|\\n)+/'}
CUSTOM = {"type": "custom", "name": "edit", "description": "Edits.", "format": FORMAT}


def call(name: str, arguments: Any) -> str:
    return f"<tool_call>\n{json.dumps({'name': name, 'arguments': arguments})}\n</tool_call>"


async def respond(text: str, **fields: Any) -> tuple[Playback, Any, list[dict[str, Any]]]:
    """Return the response, whole, and the events of the same one streamed."""
    async with served(launcher := Playback(text), answer_format=HERMES) as client:
        whole = await client.post("/v1/responses", json={"input": "x", **fields})
        streamed = await client.post("/v1/responses", json={"input": "x", "stream": True, **fields})
    assert whole.status_code == 200, whole.text
    return launcher, whole.json(), named_events(streamed.text)


@trio_test
async def test_a_custom_tool_is_called_with_raw_text(autojump_clock: MockClock) -> None:
    """Its events are its own, and its grammar holds the answer."""
    launcher, whole, events = await respond(call("edit", {"input": PATCH}), tools=[CUSTOM])
    (item,) = whole["output"]
    assert (item["type"], item["name"], item["input"]) == ("custom_tool_call", "edit", PATCH)
    assert "arguments" not in item
    deltas = [event["delta"] for event in events if event["type"] == "response.custom_tool_call_input.delta"]
    (done,) = [event for event in events if event["type"] == "response.custom_tool_call_input.done"]
    assert "".join(deltas) == done["input"] == PATCH
    assert [event["sequence_number"] for event in events] == list(range(len(events)))
    assert not any("function_call" in event["type"] for event in events)
    assert response_of(events)["output"][0]["input"] == PATCH
    assert launcher.submits[0].grammar
    assert b"edit" in bytes(launcher.submits[0].prompt.tolist())


OWN: list[tuple[str, Any, str]] = [
    ("local_shell", {"command": ["ls"]}, "action"),
    ("shell", {"commands": ["ls"], "timeout_ms": 5}, "action"),
    ("apply_patch", {"type": "delete_file", "path": "a"}, "operation"),
]


@pytest.mark.parametrize(("name", "arguments", "member"), OWN)
@trio_test
async def test_the_apis_own_tools_are_called_by_their_items(
    name: str, arguments: Any, member: str, autojump_clock: MockClock
) -> None:
    """Whole and streamed alike; a choice may name one by its type."""
    choice = {"type": name}
    _, whole, events = await respond(call(name, arguments), tools=[choice], tool_choice=choice)
    (item,) = whole["output"]
    assert item["type"] == f"{name}_call"
    assert item[member].items() >= arguments.items()
    assert whole["tool_choice"] == choice
    assert response_of(events)["output"][0][member] == item[member]


@trio_test
async def test_chat_has_custom_tools(autojump_clock: MockClock) -> None:
    """Whole and streamed alike."""
    grammar = {"type": "grammar", "grammar": {"syntax": "regex", "definition": "(.|\\n)+"}}
    tools = [{"type": "custom", "custom": {"name": "edit", "format": grammar}}]
    status, whole = await ask(call("edit", {"input": PATCH}), tools=tools)
    assert status == 200, whole
    (called,) = whole["choices"][0]["message"]["tool_calls"]
    assert (called["type"], called["custom"]) == ("custom", {"name": "edit", "input": PATCH})
    _, chunks = await ask(call("edit", {"input": PATCH}), tools=tools, stream=True)
    pieces = [
        piece["custom"]["input"]
        for chunk in chunks[:-1]
        for piece in chunk["choices"][0]["delta"].get("tool_calls", ())
    ]
    assert "".join(pieces) == PATCH


FLAT = [{"type": "function", "name": name, "parameters": {"type": "object"}} for name in ("f", "g")]
CHOICES = [
    ({"type": "auto"}, True, False),
    ({"type": "none"}, False, False),
    ("none", False, False),
    ({"type": "any"}, True, True),
    ("any", True, True),
    ({"type": "required"}, True, True),
    ({"type": "tool", "name": "g"}, True, True),
    ({"type": "function", "function": {"name": "g"}}, True, True),
    ({"type": "allowed_tools", "allowed_tools": {"mode": "auto", "tools": [FLAT[1]]}}, False, False),
    ({"type": "allowed_tools", "mode": "required", "tools": [FLAT[1], {"type": "mcp"}]}, False, True),
]


@pytest.mark.parametrize("path", ["/v1/responses", "/v1/chat/completions"])
@pytest.mark.parametrize(("choice", "has_first", "is_held"), CHOICES)
@trio_test
async def test_a_tool_choice_has_many_forms(
    path: str, choice: Any, has_first: bool, is_held: bool, autojump_clock: MockClock
) -> None:
    """Flat tools have them too; allowed ones alone are offered."""
    said = {"input": "x"} if path == "/v1/responses" else {"messages": [{"role": "user", "content": "x"}]}
    async with served(launcher := Playback(call("g", {})), answer_format=HERMES) as client:
        answer = await client.post(path, json={**said, "tools": FLAT, "tool_choice": choice})
    assert answer.status_code == 200, answer.text
    (prompt,), (submit,) = prompts(launcher), launcher.submits
    assert ("<tool>f" in prompt, bool(submit.grammar)) == (has_first, is_held)


@given(st.text(), st.data(), st.booleans())
def test_a_text_is_the_same_in_pieces(text: str, data: st.DataObject, ascii_only: bool) -> None:
    """However its JSON text is cut, escapes and halves of characters too; a cut call has its beginning."""
    arguments = json.dumps({"input": text}, ensure_ascii=ascii_only)
    arguments = arguments[: data.draw(st.integers(0, len(arguments)))]
    cuts = sorted(data.draw(st.lists(st.integers(0, len(arguments)), max_size=6)))
    pieces = [arguments[a:b] for a, b in zip([0, *cuts], [*cuts, len(arguments)], strict=True)]
    reading = InputText()
    read = "".join(map(reading.add, pieces)) + reading.end()
    assert read == input_text(arguments)
    assert text.startswith(read.removesuffix("\N{REPLACEMENT CHARACTER}"))
    assert input_text(json.dumps({"input": text}, ensure_ascii=ascii_only)) == text


@pytest.mark.parametrize(
    ("arguments", "text"),
    [('{"patch": "a"}', "a"), ("not JSON", "not JSON"), ('{"x": 1, "input": "a"}', "a")],
)
def test_other_arguments_are_the_one_text_or_what_was_written(arguments: str, text: str) -> None:
    """Nothing is lost."""
    assert input_text(arguments) == text
