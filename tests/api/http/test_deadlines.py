"""Each deadline, in virtual time: which client is disconnected, when, and with which message."""

from __future__ import annotations

import trio
import trio.testing
from starlette.types import Receive, Scope, Send
from trio.testing import MockClock, trio_test

from api.http.limits import Limits
from api.http.refusals import Refusal
from tests.api.http.wire import GET, Client, echo, part, post, respond, serving, start


async def _drip(client: Client, data: bytes, seconds: float) -> None:
    """One byte every few seconds, until the server closes."""
    try:
        for at in range(len(data)):
            await client.send(data[at : at + 1])
            await trio.sleep(seconds)
    except trio.BrokenResourceError:
        pass


@trio_test
async def test_headers_that_drip_are_cut(autojump_clock: MockClock) -> None:
    """A byte each half second keeps a connection for header_seconds and no longer: 408."""
    async with serving(echo, Limits(header_seconds=10)) as site:
        client = site.connect()
        site.nursery.start_soon(_drip, client, b"GET / HTTP/1.1\r\n" + b"x" * 1000, 0.5)
        response = await client.read_response()
        assert response.status == 408
        assert b'"code":"header_timeout"' in response.body
        assert await client.read_rest() == b""
        assert 10 <= trio.current_time() < 13
        assert site.server.statistics().refusals_total[Refusal.HEADER_TIMEOUT] == 1


@trio_test
async def test_the_deadline_of_headers_starts_with_their_first_byte(autojump_clock: MockClock) -> None:
    """A pause between requests is not part of the next request's headers."""
    async with serving(echo, Limits(header_seconds=10, keep_alive_seconds=75)) as site:
        client = site.connect()
        await client.ask()
        await trio.sleep(60)
        await client.send(GET[:5])
        await trio.sleep(9)
        assert (await client.ask(GET[5:])).status == 200


@trio_test
async def test_a_silent_connection_is_closed(autojump_clock: MockClock) -> None:
    """A new one after header_seconds, after a response the longer keep_alive_seconds; without an answer."""
    async with serving(echo, Limits(header_seconds=10, keep_alive_seconds=75)) as site:
        assert await site.connect().read_rest() == b""
        assert trio.current_time() == 10
        client = site.connect()
        await client.ask()
        assert await client.read_rest() == b""
        assert trio.current_time() == 85
        await trio.testing.wait_all_tasks_blocked()
        assert site.server.statistics().open_connections == 0


@trio_test
async def test_a_body_that_does_not_get_on_is_cut(autojump_clock: MockClock) -> None:
    """One byte each half second hardly extends the deadline, and the megabytes before it buy no time: 408
    soon after body_seconds."""
    async with serving(echo, Limits(body_seconds=30)) as site:
        client = site.connect()
        await client.send(post(bytes(9 << 20))[: 8 << 20])
        site.nursery.start_soon(_drip, client, b"x" * 1000, 0.5)
        response = await client.read_response()
        assert response.status == 408
        assert b'"code":"body_timeout"' in response.body
        assert 30 <= trio.current_time() < 31
        assert site.server.statistics().refusals_total[Refusal.BODY_TIMEOUT] == 1


@trio_test
async def test_a_slow_body_that_gets_on_is_read_to_its_end(autojump_clock: MockClock) -> None:
    """Each byte that arrives extends the deadline, so that a slow line may take longer than body_seconds."""
    async with serving(echo, Limits(body_seconds=30, body_bytes_per_second=100)) as site:
        client = site.connect()
        await client.send(b"POST / HTTP/1.1\r\nhost: x\r\ncontent-length: 10000\r\n\r\n")
        for _ in range(100):
            await trio.sleep(0.99)
            await client.send(b"x" * 100)
        assert (await client.read_response()).status == 200
        assert trio.current_time() > 90


@trio_test
async def test_an_application_that_reads_late_is_not_the_clients_fault(autojump_clock: MockClock) -> None:
    """Only the time in which the application waits for the body counts."""

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        await trio.sleep(100)
        await echo(scope, receive, send)

    async with serving(app, Limits(body_seconds=30)) as site:
        client = site.connect()
        await client.send(post(b"abc")[:-1])
        site.nursery.start_soon(_later, client, b"c", 120.0)
        assert (await client.read_response()).body == b"POST / abc"


async def _later(client: Client, data: bytes, seconds: float) -> None:
    await trio.sleep(seconds)
    await client.send(data)


@trio_test
async def test_a_slow_reader_that_gets_on_is_not_cut(autojump_clock: MockClock) -> None:
    """The deadline is for a piece, not for the whole of a large body."""

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        await respond(send, b"x" * 1000)

    async with serving(app, Limits(write_seconds=20, write_piece_bytes=100)) as site:
        client = Client(site.listener.connect(lockstep=True))
        await client.send(GET)
        got = b""
        while len(got) < 1000:
            await trio.sleep(15)
            got += bytes(await client.stream.receive_some(65536))
        assert trio.current_time() > 100


@trio_test
async def test_the_first_write_has_the_deadline_too(autojump_clock: MockClock) -> None:
    """An answer of one write that the client does not read ends too, and so do the server's own answers."""
    async with serving(echo, Limits(write_seconds=20)) as site:
        for request in (GET, b"nonsense\r\n\r\n"):
            client = Client(site.listener.connect(lockstep=True))
            await client.send(request)
            await trio.sleep(21)
            assert site.server.statistics().open_connections == 0
        assert site.server.statistics().refusals_total == {Refusal.WRITE_TIMEOUT: 1, Refusal.MALFORMED: 1}


@trio_test
async def test_an_applications_own_deadline_on_a_write_ends_the_connection(autojump_clock: MockClock) -> None:
    """The number of bytes sent is unknown, so nothing may follow."""

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        await send(start())
        with trio.move_on_after(2):
            await send(part(b"lost"))
        await send(part(b"more"))

    async with serving(app) as site:
        client = Client(site.listener.connect(lockstep=True))
        await client.send(GET)
        await trio.sleep(3)
        assert site.server.statistics().open_connections == 0
        assert b"more" not in await client.read_rest()
