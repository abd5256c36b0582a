"""Ends of a server. A drain ends when the running responses have ended, and never later than its deadline.

Where a server retires, another process accepts from its socket, and nobody here loses a request."""

from __future__ import annotations

import pytest
import trio
import trio.testing
from starlette.types import Receive, Scope, Send
from trio.testing import MockClock, trio_test

from api.http.exchange import Service
from api.http.limits import Limits
from api.http.server import Server
from tests.api.http.wire import (
    GET,
    Client,
    MemoryListener,
    Sleeper,
    Ticker,
    echo,
    post,
    serving,
)


@trio_test
async def test_an_idle_server_ends_at_once(autojump_clock: MockClock) -> None:
    """Idle keep-alive connections, and new ones without a byte, are closed without waiting: also one that
    comes with the drain."""
    async with serving(echo) as site:
        used, fresh = site.connect(), site.connect()
        await used.ask()
        last = site.connect()
        await site.server.drain(30)
        assert trio.current_time() == 0
        for client in (used, fresh, last):
            assert await client.read_rest() == b""
        assert site.ended.is_set()


@trio_test
async def test_it_ends_when_the_last_stream_has_ended(autojump_clock: MockClock) -> None:
    """Running responses are complete, and the drain does not wait for the rest of drain_seconds. Nobody is
    accepted any more."""
    async with serving(Ticker(10)) as site:
        client = site.connect()
        await client.send(GET)
        await trio.sleep(2.5)
        site.server.start_drain(30)
        await trio.testing.wait_all_tasks_blocked()
        with pytest.raises(trio.BrokenResourceError):
            site.connect()
        assert (await client.read_response()).body == b"data: x\n\n" * 10
        assert await client.read_rest() == b""
        await site.ended.wait()
        assert trio.current_time() == 10


@trio_test
async def test_a_request_on_its_way_in_is_still_served(autojump_clock: MockClock) -> None:
    """A connection with half a head is not idle. Its answer says close, so the client opens its next
    connection elsewhere instead of losing a request."""
    async with serving(echo) as site:
        client = site.connect()
        await client.send(GET[:10])
        await trio.testing.wait_all_tasks_blocked()
        site.server.start_drain(30)
        assert (await client.ask(GET[10:])).headers["connection"] == "close"
        await site.ended.wait()
        assert trio.current_time() == 0


@trio_test
async def test_a_pipelined_request_is_not_begun_in_a_drain(autojump_clock: MockClock) -> None:
    """The running request is finished; the next is left to another server."""

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        await trio.sleep(5)
        await echo(scope, receive, send)

    async with serving(app) as site:
        client = site.connect()
        await client.send(post(b"one") + post(b"two"))
        await trio.sleep(1)
        site.server.start_drain(30)
        assert (await client.read_response()).body == b"POST / one"
        assert await client.read_rest() == b""
        assert site.server.statistics().requests_total == 1


@trio_test
async def test_the_hard_deadline_cancels_what_is_left(autojump_clock: MockClock) -> None:
    """A handler that would wait forever, and a write that waits for a client that does not read."""
    sleeper, stalled = Sleeper(), Ticker()

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        await (stalled if scope["path"] == "/stalled" else sleeper)(scope, receive, send)

    async with serving(app) as site:
        waiting, unread = site.connect(), Client(site.listener.connect(lockstep=True))
        await waiting.send(GET)
        await unread.send(b"GET /stalled HTTP/1.1\r\nhost: x\r\n\r\n")
        await trio.sleep(1)
        await site.server.drain(7)
        assert trio.current_time() == 8
        assert sleeper.cancelled_at == stalled.cancelled_at == [8]
        assert await waiting.read_rest() == b""
        assert site.server.statistics().open_connections == 0


@trio_test
async def test_a_drain_before_the_start_ends_the_server_as_it_starts(autojump_clock: MockClock) -> None:
    """A signal may arrive before the first connection can."""
    server = Server(Service(echo, lambda error, request: None))
    await server.drain(5)
    await server.run([MemoryListener()])
    assert trio.current_time() == 0


@trio_test
async def test_one_that_retires_serves_an_idle_connection_once_more(autojump_clock: MockClock) -> None:
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
async def test_a_stream_that_began_before_is_followed_by_another_request(autojump_clock: MockClock) -> None:
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
async def test_one_that_retires_ends_when_the_last_idle_connection_has_timed_out(
    autojump_clock: MockClock,
) -> None:
    """As any idle connection does."""
    async with serving(echo, Limits(keep_alive_seconds=75)) as site:
        client = site.connect()
        await client.ask()
        await trio.sleep(30)
        site.server.retire()
        await site.server.wait_ended()
        assert trio.current_time() == 75
