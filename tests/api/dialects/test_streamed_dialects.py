"""Calls in every dialect through both official clients: what is streamed is what comes whole, while it is
written."""

from __future__ import annotations

import json
from typing import Any

import pytest
import trio.testing
from trio.testing import trio_test

from scheduler.service import Scheduler
from scheduler.shared.messages import ScriptedPlan
from tests.api.client import client_of
from tests.api.dialects.test_official_dialects import gpt
from tests.api.test_agents import captured
from tests.api.transcripts import message_of, named_events, response_of
from tests.examples import sampled
from tests.fakes.loopback_engine import LoopbackLauncher
from tests.fakes.playback import Playback
from tests.fakes.scheduling import make_scheduler, running
from tests.scheduler.answer.notations import form
from tests.scheduler.answer.templates import TEMPLATES

# The clients leave their own generators to the garbage collector after a stream.
pytestmark = [
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]

SOME = pytest.mark.parametrize("name", sampled(TEMPLATES, ("dsml", "json_tools", "mistral")))
"""What a parser reads is the same for every API: the others' are `long`, but for one API."""
ASK: Any = {"role": "user", "content": "Write the file."}
SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {"path": {"type": "string"}, "content": {"type": "string"}, "mode": {"type": "integer"}},
}
CODE = "\tif a < b and c:  # </parameter\n        print('<arg_value>', \"a\\n\", {1: [2]})\n\n\nnull\n"
"""A line break and white space at both ends, quotes, an escape, beginnings of marks."""
ARGUMENTS: dict[str, Any] = {"path": "a b.py", "content": CODE, "mode": 420}
FEWEST_DELTAS = 10


def scheduler_of(name: str, *calls: tuple[str, dict[str, Any]]) -> Scheduler:
    """A model that makes these calls, a byte a step."""
    template = TEMPLATES[name]
    launcher = Playback(template.render(calls or [("write", ARGUMENTS)]))
    plan = ScriptedPlan(step_seconds=0.01)
    return make_scheduler(launcher, plan, answer_format=form(template.parser))


def under_virtual_clock(check: Any) -> None:
    trio_test(check)(clock=trio.testing.MockClock(autojump_threshold=0))


@SOME
def test_responses_stream_what_they_create(name: str) -> None:
    """`responses.stream` accumulates; its last event repeats all of it."""

    async def check(clock: trio.testing.MockClock) -> None:
        scheduler = scheduler_of(name)
        tool: Any = {"type": "function", "name": "write", "parameters": SCHEMA, "strict": None}
        ask: Any = {"model": "tiny", "input": [ASK], "tools": [tool], "max_output_tokens": 2000}
        async with running(scheduler), gpt(scheduler) as client:
            whole = await client.responses.create(**ask)
            async with client.responses.stream(**ask) as stream:
                kinds = [event.type async for event in stream]
                streamed = await stream.get_final_response()
        assert kinds.count("response.function_call_arguments.delta") > FEWEST_DELTAS
        responses: list[Any] = [whole, streamed]
        for response in responses:
            (item,) = response.output
            assert item.type == "function_call"
            assert (item.name, json.loads(item.arguments)) == ("write", ARGUMENTS)

    under_virtual_clock(check)


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
def test_agents_get_the_calls_of_their_own_tools(agent: str, name: str) -> None:
    """Their recorded requests are answered with code in the arguments, streamed and whole, with one call
    and two."""

    async def check(clock: trio.testing.MockClock) -> None:
        sent = captured(agent)
        calls = AGENTS[agent]
        scheduler = scheduler_of(name, *calls)
        async with running(scheduler), client_of(scheduler) as client:
            answers = []
            for stream in (True, False):
                body = {**sent["body"], "stream": stream}
                answers.append(await client.post(sent["path"], headers=sent["headers"], json=body))
        assert [answer.status_code for answer in answers] == [200, 200]
        found = named_events(answers[0].text)
        if agent == "claude_code":
            for message in (message_of(found), answers[1].json()):
                assert [(block["name"], block["input"]) for block in message["content"]] == calls
        else:
            for response in (response_of(found), answers[1].json()):
                items = [(item["name"], json.loads(item["arguments"])) for item in response["output"]]
                assert items == calls

    under_virtual_clock(check)


STREAMING: dict[str, dict[str, Any]] = {
    "/v1/chat/completions": {"messages": [ASK], "max_tokens": 8, "n": 2},
    "/v1/completions": {"prompt": "a" * 20, "max_tokens": 8, "n": 2},
    "/v1/messages": {"messages": [ASK], "max_tokens": 8},
    "/v1/responses": {"input": "a" * 20, "max_output_tokens": 8},
}


@pytest.mark.parametrize("path", STREAMING)
def test_a_stream_that_waits_is_read_by_the_strictest_readers(path: str) -> None:
    """Nothing comes before the first event, and something in each 15 s of silence. openai-go of 2025 takes
    each empty line for the end of an event with data; langchaingo and SGLang's load tester take each other
    line of a chat or a completion for data."""

    async def check(clock: trio.testing.MockClock) -> None:
        plan = ScriptedPlan(step_seconds=5.0, prefill_tokens_per_step=1)
        scheduler = make_scheduler(LoopbackLauncher(), plan)
        async with running(scheduler), client_of(scheduler) as client:
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

    under_virtual_clock(check)
