"""Tools through each dialect with a model whose template has none: the same answers as from one that has."""

from __future__ import annotations

from typing import Any

import pytest
from trio.testing import MockClock, trio_test

from scheduler.answer.answer_format import PLAIN, AnswerFormat, tool_syntax
from tests.api.client import served
from tests.api.dialects.test_chat_tools import ask, joined
from tests.api.test_agents import AGENTS, captured
from tests.fakes.playback import Playback

GENERIC = AnswerFormat(tools=tool_syntax("generic"))
CALL = '<tool_call>\n{"name": "get_time", "arguments": {"zone": "UTC"}}\n</tool_call>'
IMAGINED = f"{CALL}\n<tool_response>\n12:00\n</tool_response>\nIt is noon."


@trio_test
async def test_a_result_that_is_imagined_ends_the_answer(autojump_clock: MockClock) -> None:
    """A model that was not trained to stop there writes the tool's result, too; the row is not left
    running."""
    for stream in (False, True):
        _, answer = await ask(IMAGINED + "x" * 500, answer_format=GENERIC, stream=stream)
        if stream:
            *chunks, _ = answer
            assert joined(chunks)["content"] == ""
            assert chunks[-1]["choices"][0]["finish_reason"] == "tool_calls"
        else:
            (choice,) = answer["choices"]
            assert (choice["finish_reason"], choice["message"]["content"]) == ("tool_calls", None)
            assert answer["usage"]["completion_tokens"] < len(IMAGINED)


@trio_test
async def test_without_tools_nothing_of_it_is_looked_for(autojump_clock: MockClock) -> None:
    """The marks are text, as of a model without any."""
    for answer_format in (GENERIC, PLAIN):
        _, answer = await ask(IMAGINED, answer_format=answer_format, tools=None)
        assert answer["choices"][0]["message"]["content"] == IMAGINED


@pytest.mark.parametrize("agent", [agent for agent in AGENTS if captured(agent)["body"].get("tools")])
@trio_test
async def test_an_agents_own_request_is_answered_with_a_call(agent: str, autojump_clock: MockClock) -> None:
    """In its own dialect, streamed as it asks for it; one that must come is held by the grammar."""
    sent = captured(agent)
    choice: Any = {"type": "any"} if sent["path"] == "/v1/messages" else "required"
    async with served(launcher := Playback(CALL), answer_format=GENERIC) as client:
        for body in (sent["body"], {**sent["body"], "tool_choice": choice}):
            response = await client.post(
                sent["path"], params=sent["query"], headers=sent["headers"], json=body
            )
            assert response.status_code == 200, response.text
            assert "get_time" in response.text
            assert "<tool_call>" not in response.text
    assert "<tool_call>" in launcher.submits[1].grammar


@trio_test
async def test_without_a_reader_of_calls_tools_are_refused(autojump_clock: MockClock) -> None:
    """`--tool-parser none`: 400 by the field's name, and the engine hears nothing of it."""
    status, body = await ask("x", answer_format=PLAIN)
    assert (status, body["error"]["param"]) == (400, "tools")
    assert "--tool-parser none" in body["error"]["message"]
