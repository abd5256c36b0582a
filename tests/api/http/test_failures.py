"""Errors of the client and of the application: each ends one connection, with the reason."""

from __future__ import annotations

import json

import pytest
import trio
import trio.testing
from starlette.types import ASGIApp, Receive, Scope, Send
from trio.testing import MockClock, trio_test

from api.http.exchange import Service
from api.http.refusals import Refusal
from api.http.request_id import ECHOED_IN
from api.http.server import Server
from tests.api.http.wire import (
    GET,
    Client,
    MemoryListener,
    echo,
    part,
    post,
    respond,
    serving,
    start,
)

INTERNAL_ERROR = {
    "type": "error",
    "error": {
        "message": "Internal server error",
        "type": "server_error",
        "param": None,
        "code": "internal_error",
    },
}


@pytest.mark.parametrize(
    ("request_bytes", "status"),
    [
        (b"nonsense\r\n\r\n", 400),
        (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03", 400),
        (b"GET /\r\n\r\n", 400),
        (b"GET / HTTP/1.1\r\n\r\n", 400),
        (b"GET / HTTP/1.1\r\nhost: x\r\nbad header: 1\r\n\r\n", 400),
        (b"GET / HTTP/1.1\r\nhost: x\r\nno-colon\r\n\r\n", 400),
        (b"GET / HTTP/1.1\r\nhost: x\r\nx: a\x00b\r\n\r\n", 400),
        (b"GET /a b HTTP/1.1\r\nhost: x\r\n\r\n", 400),
        (b"POST / HTTP/1.1\r\nhost: x\r\ncontent-length: -1\r\n\r\n", 400),
        (b"POST / HTTP/1.1\r\nhost: x\r\ncontent-length: 1\r\ncontent-length: 2\r\n\r\n", 400),
        (
            b"POST / HTTP/1.1\r\nhost: x\r\ncontent-length: 3\r\ntransfer-encoding: chunked\r\n\r\n0\r\n\r\n",
            400,
        ),
        (b"POST / HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\nnot-hex\r\n", 400),
        (b"POST / HTTP/1.1\r\nhost: x\r\ntransfer-encoding: gzip\r\n\r\n", 501),
        (b"CONNECT x:1 HTTP/1.1\r\nhost: x\r\n\r\n", 501),
        (b"HEAD x HTTP/1.1\r\nhost: x\r\n\r\n", 501),
        (b"GET / HTTP/2.0\r\nhost: x\r\n\r\n", 505),
    ],
)
@trio_test
async def test_what_is_not_http_is_refused_and_closed(
    request_bytes: bytes, status: int, autojump_clock: MockClock
) -> None:
    """A JSON error that a client library can show, `Connection: close`, and nothing after it is parsed."""
    async with serving(echo) as site:
        client = site.connect()
        await client.ask(post(b"one"))
        response = await client.ask(request_bytes + GET)
        assert response.status == status
        assert response.headers["connection"] == "close"
        said = json.loads(response.body)
        assert said["error"]["type"] in ("invalid_request_error", "server_error")
        assert {said["request_id"]} == {response.headers[name.decode()] for name in ECHOED_IN}
        assert await client.read_rest() == b""
        assert sum(site.server.statistics().refusals_total.values()) == 1


async def _raise_before(scope: Scope, receive: Receive, send: Send) -> None:
    raise ValueError("handler's fault")


async def _raise_group(scope: Scope, receive: Receive, send: Send) -> None:
    async with trio.open_nursery() as nursery:
        nursery.start_soon(_raise_before, scope, receive, send)
        nursery.start_soon(trio.sleep_forever)


async def _return_early(scope: Scope, receive: Receive, send: Send) -> None:
    await trio.lowlevel.checkpoint()


async def _bad_header(scope: Scope, receive: Receive, send: Send) -> None:
    await send(start((b"x", b"a\r\nset-cookie: injected")))


async def _too_much(scope: Scope, receive: Receive, send: Send) -> None:
    await send(start((b"content-length", b"1")))
    await send(part(b"two", more=False))


@pytest.mark.parametrize(
    "app",
    [
        _raise_before,
        _raise_group,
        _return_early,
        _bad_header,
        _too_much,
    ],
)
@trio_test
async def test_a_failure_before_the_first_byte_is_500(app: ASGIApp, autojump_clock: MockClock) -> None:
    """The error's own text is not sent; it is reported once, with the request; the connection ends."""
    async with serving(app) as site:
        client = site.connect()
        response = await client.ask(b"GET /a?b HTTP/1.1\r\nhost: x\r\nx-request-id: mine\r\n\r\n")
        assert response.status == 500
        assert response.headers["x-request-id"] == "mine"
        assert json.loads(response.body) == {**INTERNAL_ERROR, "request_id": "mine"}
        assert await client.read_rest() == b""
        ((_, request),) = site.errors
        assert request == "GET /a?b (mine)"
        assert site.server.statistics().refusals_total[Refusal.INTERNAL_ERROR] == 1
        site.errors.clear()


async def _raise_after(scope: Scope, receive: Receive, send: Send) -> None:
    await send(start())
    await send(part(b"one"))
    raise ValueError("handler's fault")


async def _return_in_the_middle(scope: Scope, receive: Receive, send: Send) -> None:
    await send(start())
    await send(part(b"one"))


@pytest.mark.parametrize("app", [_raise_after, _return_in_the_middle])
@trio_test
async def test_a_failure_after_the_first_byte_cuts_the_body_short(
    app: ASGIApp, autojump_clock: MockClock
) -> None:
    """No terminating chunk and no second head: the client can see that the body is incomplete."""
    async with serving(app) as site:
        client = site.connect()
        await client.send(GET)
        assert (await client.read_head()).status == 200
        assert await client.read_rest() == b"3\r\none\r\n"
        ((error, _),) = site.errors
        assert isinstance(error, ValueError | RuntimeError)
        site.errors.clear()


@trio_test
async def test_a_failure_after_the_response_is_only_reported(autojump_clock: MockClock) -> None:
    """The client got its whole response, so its connection goes on."""

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        await respond(send, b"ok")
        raise ValueError("too late to matter")

    async with serving(app) as site:
        client = site.connect()
        for _ in range(2):
            assert (await client.ask()).body == b"ok"
        assert len(site.errors) == 2
        site.errors.clear()


@trio_test
async def test_a_half_read_body_ends_the_connection_in_order(autojump_clock: MockClock) -> None:
    """An answer before the body's end has `Connection: close`; the rest of the body is dropped, not
    parsed."""

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        await receive()
        await respond(send, b"enough", status=400)

    async with serving(app) as site:
        client = site.connect()
        response = await client.ask(post(b"x" * 100)[:-50])
        assert (response.status, response.headers["connection"]) == (400, "close")
        # A close now would reset the connection, and could overtake the answer.
        await trio.sleep(1)
        await client.send(b"GET / HTTP/1.1\r\nhost: x\r\n\r\n")
        assert await client.read_rest() == b""
        assert site.server.statistics().requests_total == 1


@trio_test
async def test_a_bug_in_the_server_ends_one_connection(autojump_clock: MockClock) -> None:
    """An unexpected exception is reported, and other connections go on."""

    async def fail() -> None:
        raise RuntimeError("a bug below")

    async with serving(echo) as site:
        _, broken = trio.testing.memory_stream_pair()
        broken.receive_stream.receive_some_hook = fail
        site.listener.deliver(broken)
        assert (await site.connect().ask()).status == 200
        ((error, what),) = site.errors
        assert (type(error), what) == (RuntimeError, "connection")
        site.errors.clear()


@trio_test
async def test_an_exit_asked_for_beside_a_failure_is_obeyed(autojump_clock: MockClock) -> None:
    """Only errors are kept from the caller: SystemExit and Cancelled in the same group are passed on."""

    async def leave() -> None:
        raise SystemExit(3)

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(leave)
            nursery.start_soon(_raise_before, scope, receive, send)

    reported: list[BaseException] = []
    server = Server(Service(app, lambda error, request: reported.append(error)))
    listener = MemoryListener()
    await Client(listener.connect()).send(GET)
    with pytest.raises(BaseExceptionGroup) as raised:
        await server.run([listener])
    assert raised.value.subgroup(SystemExit) is not None
    assert raised.value.subgroup(ValueError) is None
    assert len(reported) == 1
