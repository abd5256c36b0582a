"""Tools through each dialect with a model whose template has none: the same answers as from one that has."""

from __future__ import annotations

from typing import Any

import pytest
import trio.testing
from trio.testing import trio_test

from scheduler.answer.answer_format import PLAIN, AnswerFormat, tool_syntax
from tests.api.client import client_of
from tests.api.dialects.test_chat_tools import TOOLS, ask, joined, serving
from tests.api.test_agents import AGENTS, captured
from tests.fakes.playback import Playback
from tests.fakes.scheduling import make_scheduler, running

GENERIC = AnswerFormat(tools=tool_syntax("generic"))
CALL = '<tool_call>\n{"name": "get_time", "arguments": {"zone": "UTC"}}\n</tool_call>'
IMAGINED = f"{CALL}\n<tool_response>\n12:00\n</tool_response>\nIt is noon."


async def generic(*texts: str, **fields: Any) -> tuple[int, Any]:
    return await ask(*texts, answer_format=GENERIC, **fields)


@trio_test
async def test_a_result_that_the_model_imagines_ends_the_answer(
    autojump_clock: trio.testing.MockClock,
) -> None:
    """A model that was not trained to stop there writes the tool's result, too; the row is not left
    running."""
    for stream in (False, True):
        _, answer = await generic(IMAGINED + "x" * 500, stream=stream)
        if stream:
            *chunks, _ = answer
            assert joined(chunks)["content"] == ""
            assert chunks[-1]["choices"][0]["finish_reason"] == "tool_calls"
        else:
            (choice,) = answer["choices"]
            assert (choice["finish_reason"], choice["message"]["content"]) == ("tool_calls", None)
            assert answer["usage"]["completion_tokens"] < len(IMAGINED)


@trio_test
async def test_without_tools_nothing_of_it_is_looked_for(autojump_clock: trio.testing.MockClock) -> None:
    """The marks are text, as of a model without any."""
    for answer_format in (GENERIC, PLAIN):
        _, answer = await ask(IMAGINED, answer_format=answer_format, tools=None)
        assert answer["choices"][0]["message"]["content"] == IMAGINED


@pytest.mark.parametrize("choice", ["required", {"type": "function", "function": {"name": "get_time"}}])
def test_a_call_that_must_come_is_held_by_the_grammar(choice: Any) -> None:
    """In the form in which the description asks for it."""

    @trio_test
    async def check() -> None:
        launcher, scheduler = serving(CALL, answer_format=GENERIC)
        body = {"messages": [{"role": "user", "content": "x"}], "tools": TOOLS, "tool_choice": choice}
        async with running(scheduler), client_of(scheduler) as client:
            response = await client.post("/v1/chat/completions", json={**body, "max_tokens": 500})
        assert response.json()["choices"][0]["finish_reason"] == "tool_calls"
        [submit] = launcher.submits
        assert "<tool_call>" in submit.grammar
        assert "get_time" in submit.grammar

    check()


@pytest.mark.parametrize("agent", [agent for agent in AGENTS if captured(agent)["body"].get("tools")])
def test_an_agents_own_request_is_answered_with_a_call(agent: str) -> None:
    """In its own dialect, streamed as it asks for it."""

    @trio_test
    async def check(clock: trio.testing.MockClock) -> None:
        sent = captured(agent)
        scheduler = make_scheduler(Playback(CALL), answer_format=GENERIC)
        async with running(scheduler), client_of(scheduler) as client:
            response = await client.post(
                sent["path"], params=sent["query"], headers=sent["headers"], json=sent["body"]
            )
            await scheduler.wait_idle()
        assert response.status_code == 200, response.text
        assert "get_time" in response.text
        assert "<tool_call>" not in response.text

    check(clock=trio.testing.MockClock(autojump_threshold=0))


@trio_test
async def test_without_a_reader_of_calls_tools_are_refused(autojump_clock: trio.testing.MockClock) -> None:
    """`--tool-parser none`: 400 by the field's name, and the engine hears nothing of it."""
    status, body = await ask("x", answer_format=PLAIN)
    assert (status, body["error"]["param"]) == (400, "tools")
    assert "--tool-parser none" in body["error"]["message"]
