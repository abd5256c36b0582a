"""The server's bounds: excess is refused before it is buffered."""

from __future__ import annotations

import tracemalloc

import pytest
import trio
import trio.testing
from trio.testing import trio_test

from api.http.asgi import Receive, Scope, Send
from api.http.limits import Limits
from api.http.refusals import Refusal
from tests.api.http.wire import Client, echo, post, read_body, respond, serving

MEGABYTE = 1024 * 1024


async def _upload(client: Client, head: bytes, frame: bytes, count: int) -> None:
    try:
        await client.send(head)
        for _ in range(count):
            await client.send(frame)
    except trio.BrokenResourceError:
        pass


@trio_test
async def test_64_megabytes_by_length_are_refused_before_they_come(
    autojump_clock: trio.testing.MockClock,
) -> None:
    """Content-Length is enough: 413 immediately, the application gets nothing, memory does not grow."""
    called = False

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        nonlocal called
        called = True

    async with serving(app) as site:
        client = Client(site.listener.connect(lockstep=True))
        head = b"POST / HTTP/1.1\r\nhost: x\r\ncontent-length: %d\r\n\r\n" % (64 * MEGABYTE)
        tracemalloc.start()
        site.nursery.start_soon(_upload, client, head, b"x" * MEGABYTE, 64)
        response = await client.read_response()
        _, peak = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        assert response.status == 413
        assert response.headers["connection"] == "close"
        assert b'"code":"body_too_large"' in response.body
        assert peak < 4 * MEGABYTE
        assert not called
        assert site.server.statistics().refusals_total[Refusal.BODY_TOO_LARGE] == 1


@trio_test
async def test_64_megabytes_in_chunks_are_refused_when_counted(
    autojump_clock: trio.testing.MockClock,
) -> None:
    """413 as soon as one byte too many has arrived; memory is only what the application keeps."""

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        while True:
            await receive()

    async with serving(app, Limits(body_bytes=2 * MEGABYTE)) as site:
        client = Client(site.listener.connect(lockstep=True))
        head = b"POST / HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\n"
        frame = b"%x\r\n%b\r\n" % (MEGABYTE, b"x" * MEGABYTE)
        tracemalloc.start()
        site.nursery.start_soon(_upload, client, head, frame, 64)
        response = await client.read_response()
        _, peak = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        assert response.status == 413
        assert peak < 6 * MEGABYTE
        assert site.server.statistics().refusals_total[Refusal.BODY_TOO_LARGE] == 1


@pytest.mark.parametrize(("size", "status"), [(1000, 200), (1001, 413)])
@pytest.mark.parametrize("chunked", [False, True])
@trio_test
async def test_the_bound_of_a_body_is_exact(
    size: int, status: int, chunked: bool, autojump_clock: trio.testing.MockClock
) -> None:
    """body_bytes pass, one more does not."""
    request = post(b"x" * size)
    if chunked:
        request = b"POST / HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\n"
        request += b"1\r\nx\r\n" * size + b"0\r\n\r\n"
    async with serving(echo, Limits(body_bytes=1000)) as site:
        assert (await site.connect().ask(request)).status == status


@pytest.mark.parametrize(("size", "status"), [(1000, 200), (1001, 431)])
@pytest.mark.parametrize("bytewise", [False, True])
@trio_test
async def test_the_bound_of_the_headers_is_exact(
    size: int, status: int, bytewise: bool, autojump_clock: trio.testing.MockClock
) -> None:
    """Request line, headers and their last empty line together are header_bytes at most."""
    empty = b"GET / HTTP/1.1\r\nhost: x\r\nx: \r\n\r\n"
    request = empty.replace(b"x: \r\n", b"x: " + b"y" * (size - len(empty)) + b"\r\n")
    async with serving(echo, Limits(header_bytes=1000)) as site:
        client = site.connect()
        await (client.send_bytewise(request) if bytewise else client.send(request))
        assert (await client.read_response()).status == status


@trio_test
async def test_huge_headers_are_refused_in_words(autojump_clock: trio.testing.MockClock) -> None:
    """200 KB of headers get 431 and a close, and the client can read that although it is still sending."""
    async with serving(echo) as site:
        client = Client(site.listener.connect(lockstep=True))
        site.nursery.start_soon(_upload, client, b"GET / HTTP/1.1\r\nhost: x\r\nx: ", b"y" * 1000, 200)
        response = await client.read_response()
        assert response.status == 431
        assert b'"code":"headers_too_large"' in response.body
        assert site.server.statistics().refusals_total[Refusal.HEADERS_TOO_LARGE] == 1


@trio_test
async def test_an_upload_into_a_running_application_stops_at_the_read_ahead(
    autojump_clock: trio.testing.MockClock,
) -> None:
    """A body that the application does not read stays unread."""

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        await trio.sleep(10)
        await respond(send, b"%d" % len(await read_body(receive)))

    async with serving(app, Limits(read_ahead_bytes=1000)) as site:
        client = Client(site.listener.connect(lockstep=True))
        sent = 0
        await client.send(b"POST / HTTP/1.1\r\nhost: x\r\ncontent-length: 100000\r\n\r\n")
        with trio.move_on_after(5):
            while True:
                await client.send(b"x" * 100)
                sent += 100
        assert sent <= 2100
