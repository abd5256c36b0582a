"""Streams of responses in the background: a client leaves, comes back, and misses nothing."""

from __future__ import annotations

import json
from typing import Any

import httpx
import pytest
import trio
from hypothesis import given, settings
from hypothesis import strategies as st
from starlette.types import Message, Scope
from trio.testing import MockClock, trio_test

from api.dialects.responses.encode import ResponseEncoder
from api.dialects.responses.event_log import EventLog, LoggedStream
from api.dialects.responses.store import ResponseStore
from tests.api.client import client_of, comments
from tests.api.dialects.test_background import LONG, slow
from tests.api.dialects.test_chat_tools import HERMES, SAID
from tests.api.dialects.test_official_dialects import FUNCTION, gpt
from tests.api.transcripts import named_events
from tests.examples import examples
from tests.fakes.playback import Playback
from tests.fakes.scheduling import make_scheduler, running

STREAMED = {**LONG, "stream": True, "max_output_tokens": 30}


def numbers(events: list[Any]) -> list[int]:
    return [event["sequence_number"] for event in events]


def events_in(text: str) -> list[Any]:
    return named_events(text) if text else []


async def read(client: httpx.AsyncClient, method: str, path: str, count: int, body: Any = None) -> list[Any]:
    """Return the first `count` events of an answer, and leave. httpx waits for the end."""
    transport: Any = client._transport
    app = transport.app
    path, _, query = path.partition("?")
    http = {"type": "http", "http_version": "1.1", "scheme": "http", "root_path": ""}
    asked = {"method": method, "path": path, "raw_path": path.encode(), "query_string": query.encode()}
    scope: Scope = {**http, **asked, "headers": [(b"host", b"penstock")], "server": ("penstock", 80)}
    read = bytearray()

    async def receive() -> Message:
        return {"type": "http.request", "body": json.dumps(body).encode(), "more_body": False}

    async def send(message: Message) -> None:
        read.extend(message.get("body", b""))
        if read.count(b"\ndata: ") >= count:
            leaving.cancel()
            await trio.lowlevel.checkpoint()

    with trio.fail_after(1000), trio.CancelScope() as leaving:
        await app(scope, receive, send)
    return events_in(read.decode())


async def begin(client: httpx.AsyncClient, count: int, **fields: Any) -> tuple[str, list[Any]]:
    events = await read(client, "POST", "/v1/responses", count, {**STREAMED, **fields})
    return events[0]["response"]["id"], events


async def rest(client: httpx.AsyncClient, response_id: str, after: int | None = None) -> list[Any]:
    behind = "" if after is None else f"&starting_after={after}"
    answer = await client.get(f"/v1/responses/{response_id}?stream=true{behind}")
    assert answer.status_code == 200, answer.text
    assert answer.headers["content-type"].startswith("text/event-stream")
    return events_in(answer.text)


@trio_test
async def test_the_official_client_resumes(autojump_clock: MockClock) -> None:
    """Behind the last event that it has, as often as it likes, also when the response is over."""
    scheduler = make_scheduler(Playback(SAID), answer_format=HERMES)
    async with running(scheduler), gpt(scheduler) as client:
        stream = await client.responses.create(
            model="tiny", input="What?", tools=[FUNCTION], background=True, stream=True
        )
        events: list[Any] = [event async for event in stream]
        assert [event.sequence_number for event in events] == list(range(len(events)))
        assert (events[0].type, events[-1].type) == ("response.created", "response.completed")
        made = events[0].response.id
        for after in (0, 7, len(events) - 1):
            again = await client.responses.retrieve(made, stream=True, starting_after=after)
            assert [event async for event in again] == events[after + 1 :]
        async with client.responses.stream(response_id=made) as whole:
            found = await whole.get_final_response()
        assert [item.type for item in found.output] == ["reasoning", "message", "function_call"]
        assert (await client.responses.retrieve(made)).output == events[-1].response.output


@given(st.lists(st.integers(1, 8), max_size=5))
@settings(max_examples=examples(8), deadline=None)
def test_a_client_that_leaves_misses_nothing(counts: list[int]) -> None:
    """It leaves in the middle, as often as it likes, and ends nothing: what it reads behind what it has is
    the stream, each event once. So for others, who come while it is made, or when it is over."""

    async def check() -> None:
        async with running(scheduler := slow()), client_of(scheduler) as client:
            made, events = await begin(client, 3, max_output_tokens=60)
            path = f"/v1/responses/{made}?stream=true&starting_after="
            others: list[list[Any]] = []

            async def follow(after: int) -> None:
                others.append([*events[: after + 1], *await rest(client, made, after)])

            async with trio.open_nursery() as nursery:
                nursery.start_soon(follow, -1)
                nursery.start_soon(follow, 1)
                for count in counts:
                    assert (await client.get(f"/v1/responses/{made}")).json()["status"] == "in_progress"
                    events += await read(client, "GET", f"{path}{events[-1]['sequence_number']}", count)
                    await trio.sleep(0.5)
                events += await rest(client, made, events[-1]["sequence_number"])
            assert numbers(events) == list(range(len(events)))
            assert events[-1]["type"] == "response.incomplete"
            assert others == [events, events]
            assert await rest(client, made) == events
            assert await rest(client, made, len(events)) == []
            text = "".join(each["delta"] for each in events if each["type"] == "response.output_text.delta")
            stored = (await client.get(f"/v1/responses/{made}")).json()
            assert (stored["output"][0]["content"][0]["text"], stored["background"]) == (text, True)
            assert stored == events[-1]["response"]

    trio.run(check, clock=MockClock(autojump_threshold=0))


@trio_test
async def test_its_readers_hear_its_end(autojump_clock: MockClock) -> None:
    """Cancelled, at its deadline, and where the server ends."""
    async with running(scheduler := slow()), client_of(scheduler) as client:

        async def end(how: str, response_id: str) -> None:
            if how == "cancelled":
                await client.post(f"/v1/responses/{response_id}/cancel")
            elif how == "the server ends":
                scheduler.end_all()

        for how in ("cancelled", "at its deadline", "the server ends"):
            status = "cancelled" if how == "cancelled" else "failed"
            made, events = await begin(client, 5, max_output_tokens=20_000, timeout=60)
            with trio.fail_after(100):
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(end, how, made)
                    events += await rest(client, made, events[-1]["sequence_number"])
            assert numbers(events) == list(range(len(events)))
            assert events[-1]["response"]["status"] == status
            assert (await client.get(f"/v1/responses/{made}")).json() == events[-1]["response"]


@trio_test
async def test_a_fault_of_the_server_is_its_end(
    autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise RuntimeError("planted")

    async with running(scheduler := slow()), client_of(scheduler) as client:
        made, events = await begin(client, 5)
        monkeypatch.setattr(ResponseEncoder, "finish", fail)
        events += await rest(client, made, events[-1]["sequence_number"])
        assert (await client.get(f"/v1/responses/{made}")).json() == events[-1]["response"]
    assert numbers(events[:-1]) == list(range(len(events) - 1))
    assert events[-1]["type"] == "response.failed"


@trio_test
async def test_each_of_its_readers_is_kept_alive(autojump_clock: MockClock) -> None:
    """So that no proxy takes it for dead."""
    async with running(scheduler := slow(max_slots=1, lookahead=0)), client_of(scheduler) as client:
        await begin(client, 3)
        answer = await client.post("/v1/responses", json=STREAMED)
    assert comments(answer.text)
    events = named_events(answer.text)
    assert numbers(events) == list(range(len(events)))


@trio_test
async def test_what_is_not_kept_is_refused(autojump_clock: MockClock) -> None:
    """What was not streamed at first, what does not fit beside its response, and one that is refused."""
    scheduler = slow(max_slots=1, lookahead=0, max_queue=1)
    store = ResponseStore(4, 12_000)
    async with running(scheduler), client_of(scheduler, responses=store) as client:
        plain = (await client.post("/v1/responses", json={**LONG, "max_output_tokens": 4})).json()["id"]
        waiting = await client.get(f"/v1/responses/{plain}?stream=true")
        whole = (await client.post("/v1/responses", json={"input": "a", "max_output_tokens": 4})).json()["id"]
        made, events = await begin(client, 1000, max_output_tokens=60)
        assert events[-1]["type"] == "response.incomplete"
        await trio.sleep(1)
        assert (await client.get(f"/v1/responses/{made}")).status_code == 200
        others = [await client.get(f"/v1/responses/{one}?stream=true") for one in (whole, made)]
        for answer in (waiting, *others):
            error = answer.json()["error"]
            assert (answer.status_code, error["param"]) == (400, "stream"), error
        assert (await client.get("/v1/responses/resp_no?stream=true")).status_code == 404
        wrong = await client.get(f"/v1/responses/{made}?stream=true&starting_after=x")
        assert (wrong.status_code, wrong.json()["error"]["param"]) == (400, "starting_after")
        await begin(client, 3)
        await client.post("/v1/responses", json=LONG)
        full = await client.post("/v1/responses", json=STREAMED)
        assert (full.status_code, full.headers["content-type"]) == (503, "application/json")


@given(st.lists(st.integers(1, 40), min_size=1))
@settings(max_examples=examples(50))
def test_events_are_cut_where_they_end(sizes: list[int]) -> None:
    """However the stream is cut in messages."""
    events = [b"data: %d\n\n" % number for number in range(20)]
    text = b"".join(events)
    log = EventLog()
    while text:
        size = sizes.pop(0) if len(sizes) > 1 else sizes[0]
        part, text = text[:size], text[size:]
        if part.endswith(b"\n") and text.startswith(b"\n"):
            part, text = part + b"\n", text[1:]
        log.add(part)
    for number in (0, 7, 19):
        place = log.place_of(number)
        assert place is not None
        assert log.read(place)[0] == b"".join(events[number:])
    assert log.place_of(20) is None


@trio_test
async def test_a_stream_that_is_too_large_is_given_up(autojump_clock: MockClock) -> None:
    """With an event that says so, and not in silence."""
    log, sent = EventLog(max_bytes=500), bytearray()

    async def send(message: Message) -> None:
        sent.extend(message.get("body", b""))

    async def receive() -> Message:
        raise AssertionError

    async with trio.open_nursery() as nursery:
        nursery.start_soon(LoggedStream(log, 15.0), {"type": "http"}, receive, send)
        for number in range(20):
            await trio.sleep(1)
            log.add(b'event: a\ndata: {"sequence_number": %d, "type": "a"}\n\n' % number)
    *events, last = named_events(sent.decode())
    assert numbers([*events, last]) == list(range(len(events) + 1))
    assert (last["type"], last["code"]) == ("error", "stream_too_large")
    assert log.is_lost
