"""The drain: it ends when the running responses have ended, and never later than its deadline."""

from __future__ import annotations

import trio
import trio.testing
from trio.testing import trio_test

from api.http.asgi import Receive, Scope, Send
from api.http.body_budget import BodyBudget
from api.http.connection import Connection
from api.http.exchange import Service
from api.http.limits import Limits
from api.http.server import Server
from api.http.statistics import ServerStatistics
from tests.api.http.wire import (
    GET,
    Client,
    MemoryListener,
    Sleeper,
    Ticker,
    echo,
    post,
    respond,
    serving,
)


@trio_test
async def test_an_idle_server_ends_at_once(autojump_clock: trio.testing.MockClock) -> None:
    """Idle keep-alive connections, and new ones without a byte, are closed without waiting."""
    async with serving(echo) as site:
        used, fresh = site.connect(), site.connect()
        await used.ask()
        await site.server.drain(30)
        assert trio.current_time() == 0
        assert await used.read_rest() == b""
        assert await fresh.read_rest() == b""
        assert site.ended.is_set()


@trio_test
async def test_it_ends_when_the_last_stream_has_ended(autojump_clock: trio.testing.MockClock) -> None:
    """Running responses are complete, and the drain does not wait for the rest of drain_seconds."""
    async with serving(Ticker(10)) as site:
        client = site.connect()
        await client.send(GET)
        await trio.sleep(2.5)
        site.server.start_drain(30)
        assert (await client.read_response()).body == b"data: x\n\n" * 10
        assert await client.read_rest() == b""
        await site.ended.wait()
        assert trio.current_time() == 10


@trio_test
async def test_a_response_that_starts_in_a_drain_says_close(autojump_clock: trio.testing.MockClock) -> None:
    """So the client opens its next connection elsewhere instead of losing a request."""

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        await trio.sleep(5)
        await respond(send, b"ok")

    async with serving(app) as site:
        client = site.connect()
        await client.send(GET)
        await trio.sleep(1)
        site.server.start_drain(30)
        assert (await client.read_response()).headers["connection"] == "close"
        await site.ended.wait()
        assert trio.current_time() == 5


@trio_test
async def test_a_request_on_its_way_in_is_still_served(autojump_clock: trio.testing.MockClock) -> None:
    """A connection with half a head is not idle."""
    async with serving(echo) as site:
        client = site.connect()
        await client.send(GET[:10])
        await trio.testing.wait_all_tasks_blocked()
        site.server.start_drain(30)
        assert (await client.ask(GET[10:])).headers["connection"] == "close"
        await site.ended.wait()
        assert trio.current_time() == 0


@trio_test
async def test_a_pipelined_request_is_not_begun_in_a_drain(autojump_clock: trio.testing.MockClock) -> None:
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
async def test_the_hard_deadline_cancels_what_is_left(autojump_clock: trio.testing.MockClock) -> None:
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
async def test_a_second_drain_can_only_bring_the_end_forward(autojump_clock: trio.testing.MockClock) -> None:
    """As for an operator's second signal."""
    async with serving(Sleeper()) as site:
        await site.connect().send(GET)
        await trio.sleep(1)
        site.server.start_drain(100)
        site.server.start_drain(2)
        await site.server.drain(100)
        assert trio.current_time() == 3
        await site.server.drain(100)
        assert trio.current_time() == 3


@trio_test
async def test_a_connection_accepted_as_the_drain_starts_is_not_waited_for(
    autojump_clock: trio.testing.MockClock,
) -> None:
    """Its task may begin only after the idle connections were closed."""
    stream, _client = trio.testing.memory_stream_pair()
    service = Service(echo, on_error=lambda error, request: None, is_draining=lambda: True)
    await Connection(stream, service, Limits(), ServerStatistics(), BodyBudget(Limits())).serve()
    assert trio.current_time() == 0


@trio_test
async def test_a_lingering_client_does_not_hold_the_drain_past_its_deadline(
    autojump_clock: trio.testing.MockClock,
) -> None:
    """The drain does not wait for a refused client that never closes."""
    async with serving(echo) as site:
        client = site.connect()
        assert (await client.ask(b"nonsense\r\n\r\n")).status == 400
        await site.server.drain(1)
        assert trio.current_time() == 1


@trio_test
async def test_nothing_is_accepted_in_a_drain(autojump_clock: trio.testing.MockClock) -> None:
    """The listeners are closed by the server that owns them."""
    async with serving(Ticker(3)) as site:
        await site.connect().send(GET)
        await trio.sleep(1)
        site.server.start_drain(30)
        await trio.testing.wait_all_tasks_blocked()
        try:
            site.connect()
        except trio.BrokenResourceError:
            return
        raise AssertionError("the listener is open")


@trio_test
async def test_a_drain_before_the_start_ends_the_server_as_it_starts(
    autojump_clock: trio.testing.MockClock,
) -> None:
    """A signal may arrive before the first connection can."""
    server = Server(echo, on_error=lambda error, request: None)
    await server.drain(5)
    await server.run([MemoryListener()])
    assert trio.current_time() == 0
