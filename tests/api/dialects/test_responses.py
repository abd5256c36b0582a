"""`POST /v1/responses`: whole and streamed answers for OpenAI's clients, and the stored responses."""

from __future__ import annotations

import tracemalloc
from typing import Any

import msgspec
import pytest
import trio
import trio.testing
from pydantic import TypeAdapter
from trio.testing import trio_test

from api.dialects.responses.conversation import input_messages
from api.dialects.responses.schema import CreateResponse
from api.dialects.responses.store import ResponseStore, Turn, messages_json
from scheduler.service import Scheduler
from scheduler.shared.messages import ScriptedPlan
from tests.api.client import client_of, refused
from tests.api.dialects.test_chat_tools import HERMES, SAID
from tests.api.transcripts import named_events, response_of
from tests.fakes.loopback_engine import LoopbackLauncher, faulty
from tests.fakes.playback import Playback
from tests.fakes.scheduling import make_scheduler, running

TOOLS = [{"type": "function", "name": "get_time", "parameters": {"type": "object", "properties": {}}}]


async def ask(*texts: str, **fields: Any) -> Any:
    """Return the answer of an engine that writes `texts`: a response, or a stream's events."""
    scheduler = make_scheduler(Playback(*texts), answer_format=HERMES)
    body = {"input": "hello", **fields}
    async with running(scheduler), client_of(scheduler) as client:
        response = await client.post("/v1/responses", json=body)
        await scheduler.wait_idle()
    assert response.status_code == 200, response.text
    return named_events(response.text) if body.get("stream") else response.json()


def content(response: dict[str, Any]) -> dict[str, Any]:
    """Return `response` without the fields that differ in every response."""
    kept = {name: response[name] for name in response if name not in ("id", "created_at", "completed_at")}
    kept["output"] = [
        {name: item[name] for name in item if name not in ("id", "call_id")} for item in response["output"]
    ]
    return kept


@trio_test
async def test_the_golden_transcript(autojump_clock: trio.testing.MockClock) -> None:
    """Event by event; the last one has everything that was streamed."""
    events = await ask(SAID, tools=TOOLS, stream=True)
    kinds: list[str] = []
    for event in events:
        if not kinds or kinds[-1] != event["type"]:
            kinds.append(event["type"])
    assert [kind.removeprefix("response.") for kind in kinds] == [
        "created",
        "in_progress",
        "output_item.added",
        "content_part.added",
        "reasoning_text.delta",
        "reasoning_text.done",
        "content_part.done",
        "output_item.done",
        "output_item.added",
        "content_part.added",
        "output_text.delta",
        "output_text.done",
        "content_part.done",
        "output_item.done",
        "output_item.added",
        "function_call_arguments.delta",
        "function_call_arguments.done",
        "output_item.done",
        "completed",
    ]
    assert content(response_of(events)) == content(await ask(SAID, tools=TOOLS))


@trio_test
async def test_max_output_tokens_makes_it_incomplete(autojump_clock: trio.testing.MockClock) -> None:
    """The last event is `response.incomplete`, with the reason; the truncated item is marked."""
    events = await ask("one two three", max_output_tokens=7, stream=True)
    whole = await ask("one two three", max_output_tokens=7)
    assert events[-1]["type"] == "response.incomplete"
    for response in (response_of(events), whole):
        assert response["status"] == "incomplete"
        assert response["incomplete_details"] == {"reason": "max_output_tokens"}
        assert response["output"][-1]["status"] == "incomplete"


@trio_test
async def test_an_engine_death_is_a_failed_response(autojump_clock: trio.testing.MockClock) -> None:
    """Never a completed one; a client that waits for the whole answer gets a status instead."""
    for stream in (True, False):
        scheduler = make_scheduler(LoopbackLauncher(faulty(die_at_step=3)))
        async with running(scheduler), client_of(scheduler) as client:
            response = await client.post("/v1/responses", json={"input": "x", "stream": stream})
        if stream:
            last = named_events(response.text)[-1]
            assert last["type"] == "response.failed"
            assert last["response"]["status"] == "failed"
            assert last["response"]["error"]["code"] == "server_error"
            assert last["response"]["error"]["message"]
        else:
            assert response.status_code == 500
            assert response.json()["error"]["code"] == "poisonous_request"


@trio_test
async def test_a_conversation_goes_on_from_a_stored_response(autojump_clock: trio.testing.MockClock) -> None:
    """All messages and calls come before the new input; instructions belong to one response and do not."""
    launcher = Playback(SAID, "It is noon.")
    scheduler = make_scheduler(launcher, answer_format=HERMES)
    async with running(scheduler), client_of(scheduler) as client:
        body: dict[str, Any] = {"input": "What time?", "tools": TOOLS, "instructions": "First."}
        first = (await client.post("/v1/responses", json=body)).json()
        output = {"type": "function_call_output", "call_id": first["output"][-1]["call_id"], "output": "12"}
        body = {"input": [output], "previous_response_id": first["id"], "tools": TOOLS}
        second = (await client.post("/v1/responses", json={**body, "instructions": "Second."})).json()
        again = await client.get(f"/v1/responses/{second['id']}")
    assert second["previous_response_id"] == first["id"]
    assert bytes(launcher.submits[1].prompt.tolist()).decode() == (
        "<tool>get_time\n<system>Second.\n<user>What time?\n<assistant>I look.\n<tool>12\n<assistant>"
    )
    assert again.json() == second


@trio_test
async def test_items_say_what_stored_responses_say(autojump_clock: trio.testing.MockClock) -> None:
    """A client without stored responses sends the output items back, as it got them."""
    launcher = Playback(SAID, "It is noon.")
    scheduler = make_scheduler(launcher, answer_format=HERMES)
    async with running(scheduler), client_of(scheduler) as client:
        body: dict[str, Any] = {
            "input": [
                {"role": "developer", "content": "Be kind."},
                {
                    "type": "message",
                    "role": "user",
                    "content": [{"type": "input_text", "text": "What time?"}],
                },
            ],
            "tools": TOOLS,
            "store": False,
            "include": ["reasoning.encrypted_content", "file_search_call.results"],
        }
        first = (await client.post("/v1/responses", json=body)).json()
        output = {"type": "function_call_output", "call_id": first["output"][-1]["call_id"], "output": "12"}
        body["input"] += [*first["output"], output]
        second = await client.post("/v1/responses", json=body)
        missing = await client.get(f"/v1/responses/{first['id']}")
        gone = await client.post("/v1/responses", json={"input": "x", "previous_response_id": first["id"]})
    assert second.status_code == 200
    assert bytes(launcher.submits[1].prompt.tolist()).decode() == (
        "<tool>get_time\n<system>Be kind.\n<user>What time?\n<assistant>I look.\n<tool>12\n<assistant>"
    )
    assert (missing.status_code, missing.json()["error"]["code"]) == (404, "response_not_found")
    assert (gone.status_code, gone.json()["error"]["code"]) == (400, "previous_response_not_found")
    assert gone.json()["error"]["param"] == "previous_response_id"


@trio_test
async def test_a_response_can_be_deleted(autojump_clock: trio.testing.MockClock) -> None:
    """Then it is not found; responses that continued it keep its messages."""
    scheduler = make_scheduler(Playback("one", "two", "three"), answer_format=HERMES)
    async with running(scheduler), client_of(scheduler) as client:
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


def running_ids(scheduler: Scheduler) -> list[str]:
    """httpx's in-process transport shows a body only when it is complete."""
    return [record.request.public_id for record in scheduler.pool.records]


@trio_test
async def test_a_stream_can_be_cancelled_by_its_id(autojump_clock: trio.testing.MockClock) -> None:
    """Its slot is free, its client sees the end, and the output so far is stored."""
    plan = ScriptedPlan(step_seconds=1.0)
    scheduler = make_scheduler(LoopbackLauncher(), plan)
    store = ResponseStore(4, 1 << 20)
    streams: list[Any] = []
    async with running(scheduler), client_of(scheduler, responses=store) as client:

        async def stream() -> None:
            body = {"input": "go on", "stream": True, "max_output_tokens": 20_000}
            streams.append(await client.post("/v1/responses", json=body))

        async with trio.open_nursery() as nursery:
            nursery.start_soon(stream)
            await trio.sleep(10.5)
            (response_id,) = running_ids(scheduler)
            cancelled = await client.post(f"/v1/responses/{response_id}/cancel")
            await scheduler.wait_idle()
        again = await client.post(f"/v1/responses/{response_id}/cancel")
        stored = await client.get(f"/v1/responses/{response_id}")
    events = named_events(streams[0].text)
    assert events[-1]["type"] == "response.incomplete"
    response = response_of(events)
    assert response["status"] == "cancelled"
    assert len(response["output"][0]["content"][0]["text"].split()) >= 5
    assert cancelled.json() == stored.json() == response
    assert (again.status_code, again.json()["error"]["type"]) == (400, "invalid_request_error")


def test_the_store_is_bounded_by_count_and_bytes() -> None:
    """The most recently used stay; each response is charged with its whole conversation."""

    def turn(content: str) -> Turn:
        return Turn(messages_json([{"role": "user", "content": content}]))

    store = ResponseStore(max_responses=3, max_bytes=6000)
    for number in range(5):
        store.put("t", f"r{number}", b"{}", None, turn("x"))
    assert [store.get("t", f"r{number}") is not None for number in range(5)] == [
        False,
        False,
        True,
        True,
        True,
    ]
    assert store.get("t", "r2") is not None
    store.put("t", "r5", b"{}", store.get("t", "r2"), turn("y" * 100))
    assert store.get("t", "r3") is None
    newest = store.get("t", "r5")
    assert newest is not None
    assert [message["content"][0] for message in newest.messages()] == ["x", "y"]
    store.put("t", "big", b"{}", newest, turn("z" * 4000))
    assert store.get("t", "big") is not None
    assert len(store) == 1
    assert store.bytes <= 6000
    store.put("t", "huge", b"{}", None, turn("z" * 6000))
    assert store.get("t", "huge") is None
    assert store.get("t", "big") is not None
    assert store.get("other", "big") is None
    assert store.delete("t", "big")
    assert (len(store), store.bytes) == (0, 0)


def test_the_tenant_that_holds_most_loses_first() -> None:
    """By number or by bytes, as is the bound; conversations and responses in the background go after
    what is stored by default."""
    text = Turn(messages_json([{"role": "user", "content": "x" * 2000}]))
    store = ResponseStore(max_responses=6, max_bytes=40_000)
    store.put("quiet", "conv_1", b"{}", None)
    store.put("quiet", "resp_1", b"{}", None, background=True)
    for number in range(50):
        store.put("flood", f"conv_{number}", b"{}", None)
    assert store.get("quiet", "conv_1") is not None
    assert store.get("quiet", "resp_1") is not None
    assert [store.get("flood", f"conv_{number}") is not None for number in (45, 46, 49)] == [
        False,
        True,
        True,
    ]
    store = ResponseStore(max_responses=99, max_bytes=20_000)
    store.put("quiet", "resp_1", b"{}", None, text)
    store.put("flood", "conv_1", b"{}", None, text)
    store.put("flood", "resp_0", b"{}", None, text, background=True)
    for number in range(1, 50):
        store.put("flood", f"resp_{number}", b"{}", None, text)
    assert store.get("quiet", "resp_1") is not None
    assert store.get("flood", "conv_1") is not None
    assert store.get("flood", "resp_0") is not None
    assert store.get("flood", "resp_1") is None
    assert store.get("flood", "resp_49") is not None


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
async def test_vllms_sampling_fields_reach_the_engine(autojump_clock: trio.testing.MockClock) -> None:
    """By the same names as in chat completions, and with the same meaning."""
    fields = {
        **{"temperature": 0.5, "top_p": 0.9, "top_k": 7, "min_p": 0.1, "seed": 3, "repetition_penalty": 1.5},
        **{"presence_penalty": 0.5, "frequency_penalty": 0.25, "logit_bias": {"65": 1}, "min_tokens": 2},
        **{"stop_token_ids": [7], "cache_salt": "mine", "ignore_eos": True},
    }
    launcher = Playback("one. two", "one. two")
    scheduler = make_scheduler(launcher)
    async with running(scheduler), client_of(scheduler) as client:
        chat = {"messages": [{"role": "user", "content": "x"}], "max_tokens": 100, **fields}
        await client.post("/v1/chat/completions", json=chat)
        body = {"input": "x", "max_output_tokens": 100, "stop": ".", **fields}
        response = (await client.post("/v1/responses", json=body)).json()
        whole = await client.post("/v1/responses", json={**body, "include_stop_str_in_output": True})
        late = await client.post("/v1/responses", json={"input": "x", "ignore_eos": True, "timeout": 0.5})
    first, second, *_ = launcher.submits
    assert msgspec.structs.replace(second, request_id=first.request_id) == first
    assert (first.sampling.top_k, first.min_tokens, first.salt) == (7, 2, "mine")
    assert response["output"][0]["content"][0]["text"] == "one"
    assert whole.json()["output"][0]["content"][0]["text"] == "one."
    assert late.status_code == 504


@trio_test
async def test_a_socket_is_refused_so_that_codex_posts_at_once(
    autojump_clock: trio.testing.MockClock,
) -> None:
    """It tries again five times after any other status than 426. Without an upgrade it is a wrong method."""
    scheduler = make_scheduler(LoopbackLauncher())
    asked = {"connection": "Upgrade", "upgrade": "websocket", "sec-websocket-version": "13"}
    async with running(scheduler), client_of(scheduler) as client:
        socket = await client.get("/v1/responses", headers=asked)
        plain = await client.get("/v1/responses")
    assert (socket.status_code, socket.json()["error"]["code"]) == (426, "only_http")
    assert socket.headers["upgrade"] == "HTTP/1.1", "RFC 9110 wants one"
    assert (plain.status_code, plain.json()["error"]["code"]) == (405, "method_not_allowed")
    assert plain.headers["allow"] == "POST"


REFUSED: list[tuple[dict[str, Any], str, str]] = [
    ({"input": []}, "", "send input"),
    ({"input": None}, "", "send input"),
    ({"input": {}}, "input", "list"),
    ({"input": [{"type": "message", "content": "x"}]}, "input.0.role", "required"),
    ({"tools": [{"type": "custom", "name": "x", "format": {"type": "voice"}}]}, "tools.0.format", "grammar"),
    ({"tool_choice": {"type": "file_search"}}, "tool_choice", "cannot run 'file_search'"),
    ({"tools": [*TOOLS, *TOOLS]}, "", "two tools have the name 'get_time'"),
    ({"tool_choice": "required"}, "tool_choice", "no tools"),
    ({"tool_choice": {"type": "function", "name": "f"}}, "tool_choice", "no tools"),
    (
        {
            "text": {
                "format": {
                    "type": "json_schema",
                    "name": "x",
                    "strict": True,
                    "schema": {"items": {"not": {"type": "null"}}},
                }
            }
        },
        "text.format.schema.items.not",
        "not",
    ),
    ({"text": {"format": {"type": "grammar"}}}, "text.format.type", "'json_schema'"),
    ({"background": True, "store": False}, "", "background: needs `store`"),
    ({"top_logprobs": 21}, "top_logprobs", "less than or equal to 20"),
    ({"seed": 2**64}, "seed", "less than or equal to"),
    ({"use_beam_search": True}, "use_beam_search", "no beam search"),
    ({"max_output_tokens": 50_000}, "max_tokens", "context"),
]


@pytest.mark.parametrize(("fields", "param", "words"), REFUSED)
def test_a_bad_field_is_refused_by_name(fields: dict[str, Any], param: str, words: str) -> None:
    """400 in OpenAI's shape, and the engine gets nothing."""
    error = refused("/v1/responses", {"input": "x", **fields})
    assert (error["param"] or "") == param
    assert words in error["message"]


SHOWN: dict[str, tuple[dict[str, Any], str]] = {
    "nothing asked": ({}, ""),
    "summary": ({"reasoning": {"summary": "auto"}}, "summary"),
    "generate_summary": ({"reasoning": {"generate_summary": "concise"}}, "summary"),
    "content": ({"include": ["reasoning.content", "reasoning.encrypted_content"]}, "content"),
}


@pytest.mark.parametrize("name", SHOWN)
@trio_test
async def test_reasoning_is_shown_where_it_is_asked_for_and_comes_back_whole(
    name: str, autojump_clock: trio.testing.MockClock
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
    counts = set()
    for item in (thought, {**sealed, "summary": []}):
        body = {"input": [item, *rest, {"type": "function_call_output", "call_id": "a", "output": "12"}]}
        asked_again = TypeAdapter(CreateResponse).validate_python(body)
        messages = list(input_messages(asked_again.input, lambda name: pytest.fail(name)))
        assert messages[0]["reasoning_content"] == "why"
        counts.add(len(messages))
    assert len(counts) == 1
