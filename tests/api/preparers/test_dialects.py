"""What a preparation process makes of a body is what the server itself makes of it, in every dialect."""

from __future__ import annotations

import json
from typing import Any

import httpx
import msgspec
import pytest
import trio.testing
from trio.testing import trio_test

from api.json_route import lane_of
from scheduler.link.messages import Submit
from tests.api.client import client_of, events
from tests.api.preparers.service import long_chat, service
from tests.api.test_agents import AGENTS, captured
from tests.api.test_chat_tools import HERMES
from tests.fakes.playback import Playback
from tests.fakes.scheduling import make_scheduler, running

SAID = "The heron stands in the reeds."


async def sent_here(path: str, **request: Any) -> tuple[Submit, httpx.Response]:
    """Send a request to a server without preparation processes."""
    engine = Playback(SAID)
    scheduler = make_scheduler(engine, answer_format=HERMES)
    async with running(scheduler), client_of(scheduler) as client:
        response = await client.post(path, **request)
        await scheduler.wait_idle()
    return engine.submits[0], response


def without_chance(submit: Submit) -> Submit:
    """A request without a seed gets a random one."""
    sampling = msgspec.structs.replace(submit.sampling, seed=0)
    return msgspec.structs.replace(submit, sampling=sampling, request_id=0)


@pytest.mark.parametrize("agent", AGENTS)
@trio_test
async def test_agents_requests_reach_the_engine_unchanged(autojump_clock: None, agent: str) -> None:
    sent = captured(agent)
    request = {"params": sent["query"], "headers": sent["headers"], "json": sent["body"]}
    here, expected = await sent_here(sent["path"], **request)
    async with service(answer_format=HERMES, said=SAID) as there:
        response = await there.http.post(sent["path"], **request)
        assert response.status_code == expected.status_code == 200
        assert response.headers.get("x-penstock-ignored") == expected.headers.get("x-penstock-ignored")
        assert without_chance(there.engine.submits[0]) == without_chance(here)
        # Reading, decoding and preparing; some requests are short.
        is_long = lane_of(json.dumps(sent["body"]).encode()) is not None
        assert there.calls == (3 if is_long else 0)
        assert is_long == (agent not in ("aider", "litellm"))
        assert there.held == 0


ITEMS = [{"role": "user", "content": f"line {number}"} for number in range(31)]
BODIES = {
    "/v1/chat/completions": long_chat(seed=7),
    "/v1/messages": {**long_chat(), "system": "Be brief."},
    "/v1/responses": {"input": ITEMS, "max_output_tokens": 8, "temperature": 0},
}


@pytest.mark.parametrize("path", BODIES)
@pytest.mark.parametrize("stream", [False, True])
@trio_test
async def test_an_answer_is_the_same(autojump_clock: None, path: str, stream: bool) -> None:
    body = {**BODIES[path], "stream": stream}
    here, expected = await sent_here(path, json=body)
    async with service(answer_format=HERMES, said=SAID) as there:
        response = await there.http.post(path, json=body)
        assert response.status_code == 200
        assert len(response.text) == len(expected.text)
        assert without_chance(there.engine.submits[0]) == without_chance(here)
        assert there.calls == 3


@trio_test
async def test_tokens_are_counted_there(autojump_clock: None) -> None:
    body = {name: value for name, value in BODIES["/v1/messages"].items() if name != "temperature"}
    async with service() as there:
        counted = await there.http.post("/v1/messages/count_tokens", json=body)
        answered = await there.http.post("/v1/messages", json=body)
        assert counted.json()["input_tokens"] == answered.json()["usage"]["input_tokens"]
        assert there.calls == 6
        assert there.held == 0


@trio_test
async def test_a_stored_conversation_goes_on(autojump_clock: None) -> None:
    """What the process has made of the input is stored, and sent along with the next turn."""
    async with service(said=SAID) as there:
        first = await there.http.post("/v1/responses", json=BODIES["/v1/responses"])
        more = {"previous_response_id": first.json()["id"], "input": ITEMS, "max_output_tokens": 8}
        second = await there.http.post("/v1/responses", json=more)
        assert second.status_code == 200
        prompt = bytes(there.engine.submits[1].prompt.tolist()).decode()
        before = bytes(there.engine.submits[0].prompt.tolist()).decode()
        assert prompt.startswith(before + SAID[:8])
        assert prompt.count("<user>line 30") == 2


@trio_test
async def test_a_held_answer_gets_its_grammar_here(autojump_clock: None) -> None:
    """Grammars are compiled and kept in the server, for all processes."""
    schema = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}
    asked = {"type": "json_schema", "json_schema": {"name": "n", "schema": schema}}
    body = long_chat(response_format=asked)
    here, _ = await sent_here("/v1/chat/completions", json=body)
    assert here.grammar
    async with service(answer_format=HERMES) as there:
        await there.http.post("/v1/chat/completions", json=body)
        assert there.engine.submits[0].grammar == here.grammar


MISTAKES: dict[str, tuple[str, Any]] = {
    "no JSON": ("/v1/chat/completions", b'{"messages": [' + b'{"role": "user"},' * 40),
    "too deep": ("/v1/chat/completions", b"[" * 100_000),
    "a wrong role": ("/v1/chat/completions", long_chat(messages=[*ITEMS, {"role": "god", "content": "x"}])),
    "a missing field": ("/v1/chat/completions", long_chat(messages=[*ITEMS, {"content": "x"}])),
    "a refused field": ("/v1/chat/completions", long_chat(audio={"voice": "a"})),
    "a wrong number": ("/v1/messages", {**long_chat(), "max_tokens": "many"}),
    "a misplaced block": (
        "/v1/messages",
        {**long_chat(), "messages": [*ITEMS, {"role": "assistant", "content": [{"type": "image"}]}]},
    ),
    "two tools of a name": (
        "/v1/responses",
        {"input": ITEMS, "tools": [{"type": "function", "name": "n", "parameters": {}}] * 2},
    ),
    "no such model": ("/v1/chat/completions", long_chat(model="other")),
    "the template refuses": ("/v1/messages", long_chat("refuse me")),
    "too long": ("/v1/chat/completions", long_chat("word " * 4000)),
    "a surrogate": ("/v1/chat/completions", long_chat("\ud800")),
}


@pytest.mark.parametrize("mistake", MISTAKES)
@trio_test
async def test_a_mistake_has_the_same_words(autojump_clock: None, mistake: str) -> None:
    path, body = MISTAKES[mistake]
    text = body if isinstance(body, bytes) else json.dumps(body).encode()
    request: dict[str, Any] = {"content": text, "headers": {"content-type": "application/json"}}
    scheduler = make_scheduler(Playback(SAID))
    async with running(scheduler), client_of(scheduler) as client:
        expected = await client.post(path, **request)
    assert 400 <= expected.status_code < 500
    async with service() as there:
        refused = await there.http.post(path, **request)
        assert refused.status_code == expected.status_code
        assert refused.json() == {**expected.json(), **_id_of(refused)}
        assert there.calls > 0
        await trio.testing.wait_all_tasks_blocked()
        assert there.held == 0


def _id_of(response: httpx.Response) -> dict[str, Any]:
    body = response.json()
    return {"request_id": body["request_id"]} if "request_id" in body else {}


@trio_test
async def test_unknown_fields_are_named(autojump_clock: None) -> None:
    async with service() as there:
        answer = await there.http.post("/v1/chat/completions", json=long_chat(flavour="sweet"))
        assert answer.headers["x-penstock-ignored"] == "flavour"


@trio_test
async def test_what_is_short_is_read_here(autojump_clock: None) -> None:
    """A process takes longer to ask than such a body takes."""
    async with service() as there:
        body = {"messages": [{"role": "user", "content": "hello"}], "max_tokens": 2, "stream": True}
        answer = await there.http.post("/v1/chat/completions", json=body)
        assert events(answer.text)[-1] == "[DONE]"
        assert there.calls == 0
