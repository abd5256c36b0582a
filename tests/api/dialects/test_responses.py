"""`POST /v1/responses`: whole and streamed answers for OpenAI's clients, and the stored responses."""

from __future__ import annotations

import re
import tracemalloc
from itertools import groupby
from typing import Any

import msgspec
import pytest
from trio.testing import MockClock, trio_test

from api.bodies.unknown_fields import HEADER
from api.dialects.responses.conversation import input_messages
from api.dialects.responses.schema import CreateResponse
from api.dialects.responses.store import ResponseStore, Turn, messages_json
from tests.api.client import prompts, served
from tests.api.dialects.test_chat_tools import HERMES, SAID
from tests.api.transcripts import named_events, response_of
from tests.fakes.loopback_engine import LoopbackLauncher, faulty
from tests.fakes.playback import Playback

TOOLS = [{"type": "function", "name": "get_time", "parameters": {"type": "object", "properties": {}}}]


async def ask(*texts: str, **fields: Any) -> Any:
    """Return the answer of an engine that writes `texts`: a response, or a stream's events."""
    body = {"input": "hello", **fields}
    async with served(Playback(*texts), answer_format=HERMES) as client:
        response = await client.post("/v1/responses", json=body)
    assert response.status_code == 200, response.text
    return named_events(response.text) if body.get("stream") else response.json()


def content(response: dict[str, Any]) -> dict[str, Any]:
    """Return `response` without the fields that differ in every response."""
    kept = {name: response[name] for name in response if name not in ("id", "created_at", "completed_at")}
    kept["output"] = [
        {name: item[name] for name in item if name not in ("id", "call_id")} for item in response["output"]
    ]
    return kept


PART = ["output_item.added", "content_part.added"]
OVER = ["content_part.done", "output_item.done"]
KINDS = [
    *("created", "in_progress"),
    *(*PART, "reasoning_text.delta", "reasoning_text.done", *OVER),
    *(*PART, "output_text.delta", "output_text.done", *OVER),
    *("output_item.added", "function_call_arguments.delta", "function_call_arguments.done", OVER[1]),
    "completed",
]


@trio_test
async def test_the_golden_transcript(autojump_clock: MockClock) -> None:
    """Event by event; the last one has everything that was streamed."""
    events = await ask(SAID, tools=TOOLS, stream=True)
    kinds = [kind.removeprefix("response.") for kind, _ in groupby(event["type"] for event in events)]
    assert kinds == KINDS
    assert content(response_of(events)) == content(await ask(SAID, tools=TOOLS))


@trio_test
async def test_max_output_tokens_makes_it_incomplete(autojump_clock: MockClock) -> None:
    """The last event is `response.incomplete`, with the reason; the truncated item is marked."""
    events = await ask("one two three", max_output_tokens=7, stream=True)
    assert events[-1]["type"] == "response.incomplete"
    response = response_of(events)
    assert content(response) == content(await ask("one two three", max_output_tokens=7))
    assert response["status"] == response["output"][-1]["status"] == "incomplete"
    assert response["incomplete_details"] == {"reason": "max_output_tokens"}


@trio_test
async def test_an_engine_death_is_a_failed_response(autojump_clock: MockClock) -> None:
    """Never a completed one; a client that waits for the whole answer gets a status instead."""
    for stream in (True, False):
        async with served(LoopbackLauncher(faulty(die_at_step=3))) as client:
            response = await client.post("/v1/responses", json={"input": "x", "stream": stream})
        if stream:
            last = named_events(response.text)[-1]
            assert (last["type"], last["response"]["status"]) == ("response.failed", "failed")
            assert last["response"]["error"]["code"] == "server_error"
        else:
            assert response.status_code == 500
            assert response.json()["error"]["code"] == "poisonous_request"


@trio_test
async def test_a_conversation_goes_on(autojump_clock: MockClock) -> None:
    """From a stored response, and from its items and references to them, as clients send them: the prompt is
    the same. Instructions belong to one response."""
    launcher = Playback(SAID, "It is noon.", "It is noon.", "It is noon.")
    developer: list[Any] = [{"role": "developer", "content": "Be kind."}]
    asked = [*developer, {"role": "user", "content": [{"type": "input_text", "text": "What time?"}]}]
    async with served(launcher, answer_format=HERMES) as client:

        async def post(**body: Any) -> Any:
            body = {"tools": TOOLS, "include": ["reasoning.encrypted_content"], **body}
            return (await client.post("/v1/responses", json=body)).json()

        first = await post(input=asked, instructions="First.")
        output = {"type": "function_call_output", "call_id": first["output"][-1]["call_id"], "output": "12"}
        stored = await post(input=[output], previous_response_id=first["id"])
        references = [{"type": "item_reference", "id": item["id"]} for item in first["output"]]
        sent = await post(input=[*asked, *first["output"], output], store=False)
        await post(input=[*asked, *references, output])
        assert (await client.get(f"/v1/responses/{stored['id']}")).json() == stored
        assert (await client.get(f"/v1/responses/{sent['id']}")).status_code == 404
        await client.delete(f"/v1/responses/{first['id']}")
        for body, status, code, param in (
            ({"input": "x", "previous_response_id": first["id"]}, 400, "previous_response_not_found", None),
            ({"input": [*asked, *references]}, 404, "item_not_found", "input"),
        ):
            gone = await client.post("/v1/responses", json=body)
            error = gone.json()["error"]
            assert (gone.status_code, error["code"]) == (status, code)
            assert error["param"] == (param or "previous_response_id")
    assert stored["previous_response_id"] == first["id"]
    prompt = "<tool>get_time\n<system>Be kind.\n<user>What time?\n<assistant>I look.\n<tool>12\n<assistant>"
    assert prompts(launcher)[1:] == [prompt] * 3
    assert "First." in prompts(launcher)[0]


@trio_test
async def test_a_response_can_be_deleted(autojump_clock: MockClock) -> None:
    """Then it is not found; responses that continued it keep its messages."""
    async with served(Playback("one", "two", "three")) as client:
        first = (await client.post("/v1/responses", json={"input": "a"})).json()["id"]
        second = await client.post("/v1/responses", json={"input": "b", "previous_response_id": first})
        deleted = await client.delete(f"/v1/responses/{first}")
        assert deleted.json() == {"id": first, "object": "response", "deleted": True}
        for answer in (
            await client.get(f"/v1/responses/{first}"),
            await client.get(f"/v1/responses/{first}?stream=true"),
            await client.get("/v1/responses/never"),
            await client.delete(f"/v1/responses/{first}"),
            await client.post(f"/v1/responses/{first}/cancel"),
        ):
            assert (answer.status_code, answer.json()["error"]["code"]) == (404, "response_not_found")
        third = {"input": "c", "previous_response_id": second.json()["id"]}
        assert (await client.post("/v1/responses", json=third)).json()["usage"]["input_tokens"] == len(
            "<user>a\n<assistant>one\n<user>b\n<assistant>two\n<user>c\n<assistant>"
        )


def turn(content: str) -> Turn:
    return Turn(messages_json([{"role": "user", "content": content}]))


def kept(store: ResponseStore, tenant: str, *names: str) -> list[str]:
    return [name for name in names if store.get(tenant, name) is not None]


def test_the_store_is_bounded_by_count_and_bytes() -> None:
    """The most recently used stay; each response is charged with its whole conversation."""
    store = ResponseStore(max_responses=3, max_bytes=6000)
    for number in range(5):
        store.put("t", f"r{number}", b"{}", None, turn("x"))
    assert kept(store, "t", "r0", "r1", "r3", "r4", "r2") == ["r3", "r4", "r2"]
    store.put("t", "r5", b"{}", store.get("t", "r2"), turn("y" * 100))
    assert kept(store, "t", "r3", "r2", "r5") == ["r2", "r5"]
    newest = store.found("t", "r5")
    assert [message["content"][0] for message in newest.messages()] == ["x", "y"]
    store.put("t", "big", b"{}", newest, turn("z" * 4000))
    store.put("t", "huge", b"{}", None, turn("z" * 6000))
    assert (len(store), kept(store, "t", "big"), kept(store, "u", "big")) == (1, ["big"], [])
    assert store.bytes <= 6000
    assert store.delete("t", "big")
    assert (len(store), store.bytes) == (0, 0)


def test_the_tenant_that_holds_most_loses_first() -> None:
    """By number or by bytes, as is the bound; responses in the background go after the others."""
    text = turn("x" * 2000)
    store = ResponseStore(max_responses=6, max_bytes=40_000)
    store.put("quiet", "first", b"{}", None)
    store.put("quiet", "second", b"{}", None)
    for number in range(50):
        store.put("flood", str(number), b"{}", None)
    assert kept(store, "quiet", "first", "second") == ["first", "second"]
    assert kept(store, "flood", "45", "46", "49") == ["46", "49"]
    store = ResponseStore(max_responses=99, max_bytes=20_000)
    store.put("quiet", "one", b"{}", None, text)
    store.put("flood", "0", b"{}", None, text, background=True)
    for number in range(1, 50):
        store.put("flood", str(number), b"{}", None, text)
    assert kept(store, "quiet", "one") == ["one"]
    assert kept(store, "flood", "0", "1", "49") == ["0", "49"]


def test_a_stored_response_is_charged_what_it_holds() -> None:
    """Objects of 20,000 short messages take ten times their text; the bound is one of memory."""
    messages = [{"role": "user", "content": chr(97 + number % 26)} for number in range(20_000)]
    store = ResponseStore(max_responses=10, max_bytes=100 << 20)
    tracemalloc.start()
    try:
        for number in range(4):
            store.put("t", f"r{number}", b"{}", None, Turn(messages_json(messages)))
        held, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    found = store.get("t", "r3")
    assert found is not None
    assert found.messages() == messages
    assert held <= store.bytes <= 2 * held


@trio_test
async def test_vllms_sampling_fields_reach_the_engine(autojump_clock: MockClock) -> None:
    """By the same names as in chat completions, and with the same meaning; a timeout is kept."""
    fields = {
        **{"temperature": 0.5, "top_p": 0.9, "top_k": 7, "min_p": 0.1, "seed": 3, "repetition_penalty": 1.5},
        **{"presence_penalty": 0.5, "frequency_penalty": 0.25, "logit_bias": {"65": 1}, "min_tokens": 2},
        **{"stop_token_ids": [7], "cache_salt": "mine", "ignore_eos": True, "max_tokens": 100},
    }
    async with served(launcher := Playback("one. two")) as client:
        chat = {"messages": [{"role": "user", "content": "x"}], **fields}
        await client.post("/v1/chat/completions", json=chat)
        await client.post("/v1/responses", json={"input": "x", **fields})
        late = await client.post("/v1/responses", json={"input": "x", "ignore_eos": True, "timeout": 0.5})
    first, second, *_ = launcher.submits
    assert msgspec.structs.replace(second, request_id=first.request_id) == first
    assert (first.sampling.top_k, first.min_tokens, first.salt) == (7, 2, "mine")
    assert late.status_code == 504


@trio_test
async def test_a_socket_is_refused_for_codex(autojump_clock: MockClock) -> None:
    """It tries again five times after any other status than 426. Without an upgrade it is a wrong method."""
    asked = {"connection": "Upgrade", "upgrade": "websocket", "sec-websocket-version": "13"}
    async with served(LoopbackLauncher()) as client:
        socket = await client.get("/v1/responses", headers=asked)
        plain = await client.get("/v1/responses")
    assert (socket.status_code, socket.json()["error"]["code"]) == (426, "only_http")
    assert socket.headers["upgrade"] == "HTTP/1.1", "RFC 9110 wants one"
    assert (plain.status_code, plain.json()["error"]["code"]) == (405, "method_not_allowed")
    assert plain.headers["allow"] == "POST"


@trio_test
async def test_tokens_are_counted_as_they_are_used(autojump_clock: MockClock) -> None:
    """With tools, instructions and what is stored; nothing is generated."""
    launcher = Playback("one", "two")
    async with served(launcher, answer_format=HERMES) as client:
        first = (await client.post("/v1/responses", json={"input": "a"})).json()["id"]
        body = {"input": "b", "tools": TOOLS, "instructions": "c", "previous_response_id": first}
        counted = (await client.post("/v1/responses/input_tokens", json=body)).json()
        assert len(launcher.submits) == 1
        used = (await client.post("/v1/responses", json=body)).json()["usage"]["input_tokens"]
    assert counted == {"object": "response.input_tokens", "input_tokens": used}


ADDED: Any = {
    "type": "additional_tools",
    "role": "developer",
    "tools": [
        {"type": "custom", "name": "exec", "description": "Run code."},
        {"type": "namespace", "name": "agents", "tools": [{**TOOLS[0], "name": "wait"}]},
        {"type": "function"},
        {"type": "web_search"},
    ],
}


@trio_test
async def test_tools_of_items_are_offered(autojump_clock: MockClock) -> None:
    """Codex sends all of its tools so. They are called under the client's names, stay with a stored
    conversation, and a later one of a name takes the place of the earlier. What cannot be read is named."""
    call = '<tool_call>\n{"name": "exec", "arguments": {"input": "ls"}}\n</tool_call>'
    launcher = Playback(call, "ok")
    async with served(launcher, answer_format=HERMES) as client:
        body: Any = {"input": [ADDED, {"role": "user", "content": "a"}], "tools": [TOOLS[0]]}
        answer = await client.post("/v1/responses", json=body)
        first = answer.json()
        chosen = {"type": "function", "name": "wait"}
        body = {"input": "b", "previous_response_id": first["id"], "tool_choice": chosen}
        counted = await client.post("/v1/responses/input_tokens", json=body)
        found: Any = {"type": "tool_search_output", "call_id": "c", "tools": [TOOLS[0]]}
        later = {**ADDED, "tools": [{"type": "function", "name": "exec"}]}
        body = {
            "input": [found, later, {"role": "user", "content": "c"}],
            "previous_response_id": first["id"],
        }
        await client.post("/v1/responses", json=body)
    called = first["output"][0]
    assert (called["type"], called["name"], called["input"]) == ("custom_tool_call", "exec", "ls")
    assert answer.headers[HEADER] == "input[].tools[].type:function,input[].tools[].type:web_search"
    assert counted.status_code == 200, counted.text
    asked, after = prompts(launcher)
    assert re.findall(r"<tool>(\w+)", asked.partition("<user>")[0]) == ["get_time", "exec", "agents__wait"]
    assert re.findall(r"<tool>(\w+)", after.partition("<user>")[0]) == ["exec", "agents__wait", "get_time"]
    assert "Found: get_time" in after


SHOWN: dict[str, tuple[dict[str, Any], str]] = {
    "nothing asked": ({}, ""),
    "summary": ({"reasoning": {"summary": "auto"}}, "summary"),
    "generate_summary": ({"reasoning": {"generate_summary": "concise"}}, "summary"),
    "content": ({"include": ["reasoning.content", "reasoning.encrypted_content"]}, "content"),
}


@pytest.mark.parametrize("name", SHOWN)
@trio_test
async def test_reasoning_is_shown_where_it_is_asked_for_and_comes_back_whole(
    name: str, autojump_clock: MockClock
) -> None:
    """Copilot CLI prints any item's content as the answer. With `store: false` clients send back what they
    got: the next prompt has the thought, whichever members they keep."""
    fields, member = SHOWN[name]
    asked = {"tools": TOOLS, "store": False, **fields}
    whole = await ask(SAID, **asked)
    assert content(response_of(await ask(SAID, stream=True, **asked))) == content(whole)
    thought, *rest = whole["output"]
    texts = {shown: [part["text"] for part in thought[shown]] for shown in ("summary", "content")}
    assert texts == {"summary": [], "content": [], **({member: ["why"]} if member else {})}
    sealed = {name: thought[name] for name in ("type", "id", "encrypted_content")}
    for item in (thought, {**sealed, "summary": []}):
        body = {"input": [item, *rest, {"type": "function_call_output", "call_id": "a", "output": "12"}]}
        read = CreateResponse.model_validate(body).input
        messages = list(input_messages(read, lambda name: pytest.fail(name)))
        assert [message["role"] for message in messages] == ["assistant", "tool"]
        assert messages[0]["reasoning_content"] == "why"
