"""FastAPI and Starlette on this server: the application's frameworks work."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator

import trio
import trio.testing
from fastapi import FastAPI
from pydantic import BaseModel
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse, StreamingResponse
from trio.testing import trio_test

from tests.api.http.wire import GET, post, serving


class Item(BaseModel):
    name: str


class Site:
    """An application with one route of each kind; it records when its generator was cancelled."""

    def __init__(self) -> None:
        self.cancelled_at: list[float] = []
        self.app = FastAPI()
        self.app.add_api_route("/items", self.item, methods=["POST"])
        self.app.add_api_route("/events", self.events, methods=["GET"])
        self.app.add_api_route("/refused", self.refused, methods=["GET"])
        self.app.add_api_route("/fails", self.fails, methods=["GET"])

    async def item(self, item: Item) -> Item:
        return item

    async def events(self, count: int) -> StreamingResponse:
        async def generate() -> AsyncIterator[bytes]:
            try:
                for number in range(count):
                    yield b"data: %d\n\n" % number
                    await trio.sleep(1)
            except trio.Cancelled:
                self.cancelled_at.append(trio.current_time())
                raise

        return StreamingResponse(generate(), media_type="text/event-stream")

    async def refused(self) -> None:
        raise HTTPException(418, "a teapot")

    async def fails(self) -> None:
        raise ValueError("handler's fault")


def _get(path: bytes) -> bytes:
    return b"GET %b HTTP/1.1\r\nhost: x\r\n\r\n" % path


@trio_test
async def test_json_in_and_out(autojump_clock: trio.testing.MockClock) -> None:
    """A validated body, a refused one, a missing route and a wrong method, on one connection."""
    headers = b"content-type: application/json\r\n"
    async with serving(Site().app) as site:
        client = site.connect()
        wire = b"POST /items HTTP/1.1\r\n" + post(b'{"name":"a"}', headers=headers).partition(b"\r\n")[2]
        response = await client.ask(wire)
        assert (response.status, json.loads(response.body)) == (200, {"name": "a"})
        assert response.headers["content-type"] == "application/json"
        assert (await client.ask(wire.replace(b'"name"', b'"nome"'))).status == 422
        assert (await client.ask(_get(b"/nowhere"))).status == 404
        assert (await client.ask(_get(b"/items"))).status == 405


@trio_test
async def test_an_http_exception_is_an_answer(autojump_clock: trio.testing.MockClock) -> None:
    """It keeps its status and its connection, and is not reported as a failure."""
    async with serving(Site().app) as site:
        client = site.connect()
        for _ in range(2):
            response = await client.ask(_get(b"/refused"))
            assert (response.status, json.loads(response.body)) == (418, {"detail": "a teapot"})


@trio_test
async def test_a_handlers_exception_is_reported(autojump_clock: trio.testing.MockClock) -> None:
    """Starlette answers 500 by itself and re-raises, so that the server can report the exception."""
    async with serving(Site().app) as site:
        assert (await site.connect().ask(_get(b"/fails"))).status == 500
        ((error, request),) = site.errors
        assert isinstance(error, ValueError)
        assert request.startswith("GET /fails (req_")
        site.errors.clear()


@trio_test
async def test_a_streaming_response_streams(autojump_clock: trio.testing.MockClock) -> None:
    """Each event is sent when it is yielded; the connection goes on afterwards, and ends when idle."""
    async with serving(Site().app) as site:
        client = site.connect()
        for round_ in range(2):
            await client.send(_get(b"/events?count=3"))
            await client.read_head()
            for number in range(3):
                assert await client.read_chunk() == b"data: %d\n\n" % number
                assert trio.current_time() == 3 * round_ + number
            assert await client.read_chunk() == b""
        assert await client.read_rest() == b""
        assert trio.current_time() == 6 + 75


@trio_test
async def test_leaving_a_streaming_response_cancels_its_generator(
    autojump_clock: trio.testing.MockClock,
) -> None:
    """Cancelled reaches the generator where it waits; nothing is reported as a failure."""
    fast = Site()
    async with serving(fast.app) as site:
        client = site.connect()
        await client.send(_get(b"/events?count=100"))
        await trio.sleep(2.5)
        await client.close()
        await trio.testing.wait_all_tasks_blocked()
        assert fast.cancelled_at == [2.5]


@trio_test
async def test_state_reaches_the_request(autojump_clock: trio.testing.MockClock) -> None:
    """The server's state is in `request.state`, and each request has its own copy."""

    async def read(request: Request) -> JSONResponse:
        before = getattr(request.state, "seen", None)
        request.state.seen = True
        return JSONResponse({"before": before})

    app = FastAPI()
    app.add_route("/", read)
    async with serving(app) as site:
        client = site.connect()
        for _ in range(2):
            assert json.loads((await client.ask(GET)).body) == {"before": None}
