"""Streams that agents and strict readers take: what is streamed is what comes whole, while it is
written."""

from __future__ import annotations

import json
from typing import Any

import pytest
from trio.testing import MockClock, trio_test

from scheduler.shared.messages import ScriptedPlan
from tests.api.client import served
from tests.api.test_agents import captured
from tests.api.transcripts import message_of, named_events, response_of
from tests.examples import sampled
from tests.fakes.loopback_engine import LoopbackLauncher
from tests.fakes.playback import Playback
from tests.scheduler.answer.notations import form
from tests.scheduler.answer.templates import TEMPLATES

SOME = pytest.mark.parametrize("name", sampled(TEMPLATES, ("dsml", "json_tools", "mistral")))
"""What a parser reads is the same for every API: the others' are `long`, but for one API."""
ASK: Any = {"role": "user", "content": "Write the file."}
CODE = "\tif a < b and c:  # </parameter\n        print('<arg_value>', \"a\\n\", {1: [2]})\n\n\nnull\n"
"""A line break and white space at both ends, quotes, an escape, beginnings of marks."""
FEWEST_DELTAS = 10


AGENTS: dict[str, list[tuple[str, dict[str, Any]]]] = {
    "claude_code": [
        ("Bash", {"command": CODE, "timeout": 3000, "run_in_background": False}),
        ("Read", {"file_path": "/srv/a b", "offset": 7}),
    ],
    "codex": [
        (
            "exec_command",
            {"cmd": CODE, "prefix_rule": ["git", "show </x>"], "tty": False, "yield_time_ms": 1.5},
        ),
        ("write_stdin", {"session_id": 3, "chars": "\n"}),
    ],
}
"""Calls of tools that these agents offer in their recorded requests."""


@SOME
@pytest.mark.parametrize("agent", AGENTS)
@trio_test
async def test_agents_get_the_calls_of_their_own_tools(
    agent: str, name: str, autojump_clock: MockClock
) -> None:
    """Their recorded requests are answered with code in the arguments, streamed while it is written, and
    whole."""
    sent, calls, template = captured(agent), AGENTS[agent], TEMPLATES[name]
    launcher, plan = Playback(template.render(calls)), ScriptedPlan(step_seconds=0.01)
    answers = []
    async with served(launcher, plan=plan, answer_format=form(template.parser)) as client:
        for stream in (True, False):
            body = {**sent["body"], "stream": stream}
            answers.append(await client.post(sent["path"], headers=sent["headers"], json=body))
    assert [answer.status_code for answer in answers] == [200, 200]
    found = named_events(answers[0].text)
    kind = "content_block_delta" if agent == "claude_code" else "response.function_call_arguments.delta"
    assert [event["type"] for event in found].count(kind) > FEWEST_DELTAS
    if agent == "claude_code":
        for message in (message_of(found), answers[1].json()):
            assert [(block["name"], block["input"]) for block in message["content"]] == calls
    else:
        for response in (response_of(found), answers[1].json()):
            items = [(item["name"], json.loads(item["arguments"])) for item in response["output"]]
            assert items == calls


STREAMING: dict[str, dict[str, Any]] = {
    "/v1/chat/completions": {"messages": [ASK], "max_tokens": 8, "n": 2},
    "/v1/completions": {"prompt": "a" * 20, "max_tokens": 8, "n": 2},
    "/v1/messages": {"messages": [ASK], "max_tokens": 8},
    "/v1/responses": {"input": "a" * 20, "max_output_tokens": 8},
}


@pytest.mark.parametrize("path", STREAMING)
@trio_test
async def test_a_stream_that_waits_is_read_by_the_strictest_readers(
    path: str, autojump_clock: MockClock
) -> None:
    """Nothing comes before the first event, and something in each 15 s of silence. openai-go of 2025 takes
    each empty line for the end of an event with data; langchaingo and SGLang's load tester take each other
    line of a chat or a completion for data."""
    plan = ScriptedPlan(step_seconds=5.0, prefill_tokens_per_step=1)
    async with served(LoopbackLauncher(), plan=plan) as client:
        answer = await client.post(path, json={**STREAMING[path], "stream": True})
    data, lines = "", answer.text.split("\n")
    assert not lines[0].startswith(":")
    for line in lines[:-1]:
        assert line or data, "an empty line without data before it"
        assert not line or line.startswith(("data: ", "event: ", ":"))
        if "completions" in path:
            assert not line or line.startswith("data: ")
        data = line.removeprefix("data: ") if line.startswith("data: ") else data if line else ""
    empty = (":", "event: ping")
    silent = [line for line in lines if line in empty or '"content":""' in line or '"text":""' in line]
    assert len(silent) >= 3
