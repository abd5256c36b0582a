"""A server that retires: another process accepts from its socket, and nobody here loses a request."""

from __future__ import annotations

import trio
import trio.testing
from trio.testing import trio_test

from api.http.asgi import Receive, Scope, Send
from api.http.limits import Limits
from tests.api.http.wire import GET, Ticker, echo, respond, serving


@trio_test
async def test_an_idle_connection_is_served_once_more(autojump_clock: trio.testing.MockClock) -> None:
    """A request may be on its way on it: its answer says close, so the next one goes to the successor."""
    async with serving(echo) as site:
        client = site.connect()
        assert "connection" not in (await client.ask()).headers
        site.server.retire()
        await trio.sleep(20)
        answer = await client.ask()
        assert (answer.status, answer.headers["connection"]) == (200, "close")
        assert await client.read_rest() == b""
        await site.ended.wait()
        assert trio.current_time() == 20


@trio_test
async def test_a_connection_without_a_request_yet_is_served(autojump_clock: trio.testing.MockClock) -> None:
    """It was accepted here, so nobody else can answer it."""
    async with serving(echo) as site:
        client = site.connect()
        await trio.testing.wait_all_tasks_blocked()
        site.server.retire()
        await trio.sleep(5)
        assert (await client.ask()).headers["connection"] == "close"


@trio_test
async def test_a_stream_that_began_before_is_followed_by_another_request(
    autojump_clock: trio.testing.MockClock,
) -> None:
    """Its head did not say close, so its client may use the connection again as soon as it ends."""
    async with serving(Ticker(10)) as site:
        client = site.connect()
        await client.send(GET)
        await trio.sleep(2.5)
        site.server.retire()
        assert (await client.read_response()).body == b"data: x\n\n" * 10
        again = await client.ask()
        assert (again.body, again.headers["connection"]) == (b"data: x\n\n" * 10, "close")
        await site.ended.wait()
        assert trio.current_time() == 20


@trio_test
async def test_it_ends_when_the_last_idle_connection_has_timed_out(
    autojump_clock: trio.testing.MockClock,
) -> None:
    """As any idle connection does."""
    async with serving(echo, Limits(keep_alive_seconds=75)) as site:
        client = site.connect()
        await client.ask()
        await trio.sleep(30)
        site.server.retire()
        await site.server.wait_ended()
        assert trio.current_time() == 75


@trio_test
async def test_nobody_is_accepted(autojump_clock: trio.testing.MockClock) -> None:
    """The listeners are closed, also where no client is left."""
    async with serving(echo) as site:
        site.server.retire()
        await site.server.wait_ended()
        assert trio.current_time() == 0


@trio_test
async def test_a_drain_ends_what_is_left(autojump_clock: trio.testing.MockClock) -> None:
    """An operator's SIGTERM in mid-retirement keeps its deadline."""

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        await trio.sleep(100)
        await respond(send, b"late")

    async with serving(app) as site:
        client = site.connect()
        await client.send(GET)
        await trio.sleep(1)
        site.server.retire()
        await site.server.drain(7)
        assert trio.current_time() == 8
        assert await client.read_rest() == b""
