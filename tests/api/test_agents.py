"""Captured requests of real agents: the last request of a run in which each of them used a tool (aider has
none).

A server captured them whose model asked the agents to read a file (`agents/`, with shortened texts and
replaced ids). `docs/agents/` describes how to configure each agent.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import httpx
import pytest
from trio.testing import MockClock, trio_test

from api.bodies.unknown_fields import HEADER
from tests.api.client import prompts, served
from tests.api.dialects.test_chat_tools import HERMES
from tests.api.transcripts import answers_of, named_events, response_of
from tests.fakes.playback import Playback

CAPTURED = Path(__file__).parent / "agents"
AGENTS = sorted(path.stem for path in CAPTURED.glob("*.json"))
SAID = "The heron stands in the reeds."


def captured(agent: str) -> Any:
    return json.loads((CAPTURED / f"{agent}.json").read_text())


async def replay(agent: str, text: str = SAID, **changed: Any) -> tuple[Playback, httpx.Response]:
    """Send the request again, to a model that answers `text`."""
    sent, launcher = captured(agent), Playback(text)
    body = {**sent["body"], **changed}
    async with served(launcher, answer_format=HERMES) as client:
        response = await client.post(sent["path"], params=sent["query"], headers=sent["headers"], json=body)
    return launcher, response


@pytest.mark.parametrize("agent", AGENTS)
@trio_test
async def test_an_agents_own_request_is_answered(agent: str, autojump_clock: MockClock) -> None:
    """No field is refused, and its stream ends with the model's text."""
    launcher, response = await replay(agent)
    assert response.status_code == 200, response.text
    (answer,) = answers_of(captured(agent)["path"], response.text, streams=True)
    assert answer.text == SAID
    (prompt,) = prompts(launcher)
    assert captured(agent)["tool_result"] in prompt.split("<tool>")[-1]
    assert "x-anthropic-billing-header" not in prompt, "it changes with every request"


@pytest.mark.parametrize("agent", ["claude_code", "codex", "opencode"])
@trio_test
async def test_an_agents_requests_are_one_session(agent: str, autojump_clock: MockClock) -> None:
    """Each agent names it in a header of its own; the fair queue groups its turns by it."""
    launcher, _ = await replay(agent)
    assert launcher.submits[0].session


@trio_test
async def test_claude_code_finds_somebody_at_the_root(autojump_clock: MockClock) -> None:
    """`HEAD /` is its first request."""
    async with served(Playback(SAID)) as client:
        assert (await client.head("/")).status_code == 200


@trio_test
async def test_codexs_namespaces_come_back_as_it_knows_them(autojump_clock: MockClock) -> None:
    """The model gets one name; the call has the two, streamed and whole; sent back, it is one again."""
    call = '<tool_call>\n{"name": "multi_agent_v1__close_agent", "arguments": {"target": "a"}}\n</tool_call>'
    for stream in (True, False):
        launcher, response = await replay("codex", call, stream=stream)
        found = response_of(named_events(response.text)) if stream else response.json()
        (item,) = found["output"]
        assert (item["type"], item["namespace"], item["name"]) == (
            "function_call",
            "multi_agent_v1",
            "close_agent",
        )
        assert b"<tool>multi_agent_v1__close_agent" in bytes(launcher.submits[0].prompt.tolist())
        assert b"web_search" not in bytes(launcher.submits[0].prompt.tolist())
        assert [tool["type"] for tool in found["tools"]] == [
            "function",
            "function",
            "namespace",
            "web_search",
        ]
        result = {"type": "function_call_output", "call_id": item["call_id"], "output": "closed"}
        asked = [*captured("codex")["body"]["input"], item, result]
        launcher, response = await replay("codex", SAID, input=asked)
        assert response.status_code == 200, response.text


NAMED = ("close_agent", "multi_agent_v1__close_agent")


@pytest.mark.parametrize("name", NAMED)
@trio_test
async def test_a_function_in_a_namespace_can_be_the_one_that_must_be_called(name: str) -> None:
    """By its own name or by both; the grammar has the prompt's name, the answer the client's."""
    call = '<tool_call>\n{"name": "multi_agent_v1__close_agent", "arguments": {"target": "a"}}\n</tool_call>'
    choice = {"type": "function", "name": name}
    launcher, response = await replay("codex", call, stream=False, tool_choice=choice)
    found = response.json()
    assert (response.status_code, found["tool_choice"]) == (200, choice)
    assert found["output"][0]["name"] == "close_agent"
    [submit] = launcher.submits
    assert "multi_agent_v1__close_agent" in submit.grammar
    assert "exec_command" not in submit.grammar


@trio_test
async def test_tools_that_run_at_openai_are_left_out_and_named(autojump_clock: MockClock) -> None:
    """Clients offer them by default, and an offer requires no use; next year's types are none of ours."""
    kinds = ("code_interpreter", "file_search", "image_generation", "mcp", "tool_search", "telepathy")
    tools = [*captured("codex")["body"]["tools"], *({"type": kind, "name": "x"} for kind in kinds)]
    launcher, response = await replay("codex", tools=tools)
    assert response.status_code == 200
    named = response.headers[HEADER].split(",")
    assert set(named) >= {f"tools[].type:{kind}" for kind in (*kinds, "web_search")}
    assert b"telepathy" not in bytes(launcher.submits[0].prompt.tolist())
