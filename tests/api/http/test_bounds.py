"""What is bounded of requests in bytes: head, body, and all bodies together. Excess is refused before it is
buffered."""

from __future__ import annotations

import tracemalloc

import pytest
import trio
from starlette.types import Receive, Scope, Send
from trio.testing import MockClock, trio_test

from api.http.limits import Limits
from api.http.refusals import Refusal
from tests.api.http.wire import echo, post, read_body, respond, serving

KILO = 1024
MEGABYTE = KILO * KILO
POST = b"POST / HTTP/1.1\r\nhost: x\r\n"
LIMITS = Limits(held_body_bytes=4 * MEGABYTE, account_body_bytes=2 * MEGABYTE)


def begun(length: int, *, account: bytes = b"a") -> bytes:
    return b"POST / HTTP/1.1\r\nhost: x\r\nx-account: %b\r\ncontent-length: %d\r\n\r\n" % (account, length)


def by_header(scope: Scope) -> str:
    headers: dict[bytes, bytes] = dict(scope["headers"])
    return headers[b"x-account"].decode()


@trio_test
async def test_bodies_that_never_end_hold_a_bounded_number_of_bytes(autojump_clock: MockClock) -> None:
    """Sixty of a megabyte each, cut before their end: each has its answer and is closed, those without room
    within seconds by 503 with the time to come back, the others by 408 although they sent much."""
    held: list[int] = []

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        body = 0
        while (message := await receive())["more_body"]:
            body += len(message["body"])
            held.append(body)

    async with serving(app, LIMITS, account_of=by_header) as site:
        clients = [site.connect(lockstep=True) for _ in range(60)]
        for number, client in enumerate(clients):
            head = begun(MEGABYTE, account=b"%d" % (number % 3))
            site.nursery.start_soon(client.upload, head + bytes(MEGABYTE - 1))
        answers = [await client.read_response() for client in clients]
        assert trio.current_time() < 60
        refusals = site.server.statistics().refusals_total
        assert {answer.status for answer in answers} == {408, 503}
        assert all(answer.headers["retry-after"] for answer in answers if answer.status == 503)
        assert refusals[Refusal.BODY_TIMEOUT] + refusals[Refusal.BODIES_TOO_MANY] == 60
        # Of three accounts: four at a time, and those that followed them.
        assert held.count(MEGABYTE - 1) <= 8


@trio_test
async def test_an_honest_body_gets_the_room_of_those_that_do_not_get_on(autojump_clock: MockClock) -> None:
    async with serving(echo, LIMITS) as site:
        stalled = [site.connect() for _ in range(2)]
        for client in stalled:
            await client.send(begun(MEGABYTE) + bytes(500 * KILO))
        await trio.sleep(1)
        honest = await site.connect().ask(post(b"x" * MEGABYTE, headers=b"x-account: a\r\n"))
        assert honest.status == 200
        assert trio.current_time() < LIMITS.body_room_seconds
        assert [(await client.read_response()).status for client in stalled] == [408, 408]


@trio_test
async def test_an_account_does_not_take_the_room_of_others(autojump_clock: MockClock) -> None:
    """Also small bodies never wait."""
    async with serving(echo, LIMITS, account_of=by_header) as site:
        for _ in range(3):
            await site.connect().send(begun(MEGABYTE))
        await trio.sleep(0.1)
        other = await site.connect().ask(post(b"x" * MEGABYTE, headers=b"x-account: b\r\n"))
        small = await site.connect().ask(post(b"x" * KILO, headers=b"x-account: a\r\n"))
        assert (other.status, small.status) == (200, 200)
        assert trio.current_time() < 1


@trio_test
async def test_room_is_there_again_when_the_application_drops_a_body(autojump_clock: MockClock) -> None:
    """Before its answer, which may take minutes. `on_freed` is called once for each large body."""
    freed: list[float] = []

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        await read_body(receive)
        scope["release_body"]()
        await trio.sleep(100)
        await respond(send, b"read")

    async with serving(app, LIMITS, on_freed=lambda: freed.append(trio.current_time())) as site:
        clients = [site.connect() for _ in range(8)]
        for client in clients:
            await client.send(post(bytes(MEGABYTE)))
        assert [(await client.read_response()).status for client in clients] == [200] * 8
        assert trio.current_time() < 101
        assert len(freed) == 8


@trio_test
async def test_what_is_made_of_bodies_is_charged_and_waited_for(autojump_clock: MockClock) -> None:
    """A body of 100 KB becomes 3 MB: all are read, but things are made of one at a time."""
    made = most = 0

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        nonlocal made, most
        await read_body(receive)
        while not scope["has_room"]():
            await scope["wait_for_room"]()
        scope["charge_body"](3 * MEGABYTE)
        made += 1
        most = max(most, made)
        await trio.sleep(1)
        made -= 1
        scope["release_body"]()
        await respond(send, b"read")

    async with serving(app, LIMITS) as site:
        clients = [site.connect() for _ in range(4)]
        for client in clients:
            await client.send(post(bytes(100_000)))
        assert [(await client.read_response()).status for client in clients] == [200] * 4
    assert most == 1


@trio_test
async def test_a_client_that_leaves_gives_its_room_back(autojump_clock: MockClock) -> None:
    async with serving(echo, LIMITS) as site:
        leaving = [site.connect() for _ in range(4)]
        for client in leaving:
            await client.send(begun(MEGABYTE) + bytes(10))
        await trio.sleep(1)
        for client in leaving:
            await client.close()
        await trio.sleep(0.1)
        assert (await site.connect().ask(post(bytes(MEGABYTE)))).status == 200
        assert trio.current_time() < 2


@trio_test
async def test_a_body_of_unknown_length_is_charged_as_it_comes(autojump_clock: MockClock) -> None:
    async with serving(echo, LIMITS) as site:
        client = site.connect()
        site.nursery.start_soon(
            client.upload,
            b"POST / HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\n"
            + b"".join([b"10000\r\n" + bytes(0x10000) + b"\r\n" for _ in range(64)]),
        )
        answer = await client.read_response()
        assert (answer.status, answer.headers["retry-after"]) == (503, "1")


@pytest.mark.parametrize("chunked", [False, True])
@trio_test
async def test_64_megabytes_are_refused_before_they_come(chunked: bool, autojump_clock: MockClock) -> None:
    """413 by Content-Length alone, in chunks as soon as one byte too many has arrived; memory is only what
    the application keeps."""
    called = False

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        nonlocal called
        called = True
        while True:
            await receive()

    async with serving(app, Limits(body_bytes=2 * MEGABYTE)) as site:
        client = site.connect(lockstep=True)
        head = POST + (b"transfer-encoding: chunked" if chunked else b"content-length: %d" % (64 * MEGABYTE))
        piece = b"%x\r\n%b\r\n" % (MEGABYTE, bytes(MEGABYTE))
        tracemalloc.start()
        site.nursery.start_soon(client.upload, head + b"\r\n\r\n", *[piece] * 64)
        response = await client.read_response()
        _, peak = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        assert (response.status, response.headers["connection"], called) == (413, "close", chunked)
        assert b'"code":"body_too_large"' in response.body
        assert peak < 6 * MEGABYTE
        assert site.server.statistics().refusals_total == {Refusal.BODY_TOO_LARGE: 1}


@pytest.mark.parametrize(("size", "status"), [(1000, 200), (1001, 413)])
@pytest.mark.parametrize("chunked", [False, True])
@trio_test
async def test_the_bound_of_a_body_is_exact(
    size: int, status: int, chunked: bool, autojump_clock: MockClock
) -> None:
    """body_bytes pass, one more does not."""
    request = post(b"x" * size)
    if chunked:
        request = POST + b"transfer-encoding: chunked\r\n\r\n"
        request += b"1\r\nx\r\n" * size + b"0\r\n\r\n"
    async with serving(echo, Limits(body_bytes=1000)) as site:
        assert (await site.connect().ask(request)).status == status


@pytest.mark.parametrize(("size", "status"), [(1000, 200), (1001, 431)])
@pytest.mark.parametrize("bytewise", [False, True])
@trio_test
async def test_the_bound_of_the_headers_is_exact(
    size: int, status: int, bytewise: bool, autojump_clock: MockClock
) -> None:
    """Request line, headers and their last empty line together are header_bytes at most."""
    empty = b"GET / HTTP/1.1\r\nhost: x\r\nx: \r\n\r\n"
    request = empty.replace(b"x: \r\n", b"x: " + b"y" * (size - len(empty)) + b"\r\n")
    async with serving(echo, Limits(header_bytes=1000)) as site:
        client = site.connect()
        await (client.send_bytewise(request) if bytewise else client.send(request))
        assert (await client.read_response()).status == status
        refusals = site.server.statistics().refusals_total
        assert refusals == ({} if status == 200 else {Refusal.HEADERS_TOO_LARGE: 1})
