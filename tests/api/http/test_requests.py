"""Requests and responses as bytes: what the application gets, and how its response is framed."""

from __future__ import annotations

from typing import Any

import h11
import pytest
import trio
from starlette.types import Receive, Scope, Send
from trio.testing import MockClock, trio_test

from api.http.http_scope import response_head
from tests.api.http.wire import (
    GET,
    Client,
    echo,
    part,
    post,
    read_body,
    respond,
    serving,
    start,
)


@trio_test
async def test_the_scope_says_what_the_request_said(autojump_clock: MockClock) -> None:
    """Path decoded, raw path and query as sent, header names in lower case."""
    scopes: list[Scope] = []

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        scopes.append(scope)
        await respond(send, b"ok")

    async with serving(app) as site:
        head = b"GET /caf%C3%A9%20x?q=%201&r HTTP/1.1\r\nHost: x\r\nX-Two: a\r\nX-Two: b\r\n"
        head += b"X-Request-Id: mine\r\n\r\n"
        await site.connect().ask(head)
    (scope,) = scopes
    assert callable(scope.pop("release_body"))
    assert callable(scope.pop("charge_body"))
    assert callable(scope.pop("wait_for_room"))
    assert scope.pop("has_room")()
    assert scope == {
        "type": "http",
        "asgi": {"version": "3.0", "spec_version": "2.4"},
        "http_version": "1.1",
        "method": "GET",
        "scheme": "http",
        "path": "/café x",
        "raw_path": b"/caf%C3%A9%20x",
        "query_string": b"q=%201&r",
        "root_path": "",
        "headers": [(b"host", b"x"), (b"x-two", b"a"), (b"x-two", b"b"), (b"x-request-id", b"mine")],
        "client": None,
        "server": None,
        "request_id": "mine",
    }


@pytest.mark.parametrize(
    ("target", "path"),
    [
        (b"*", "*"),
        (b"/a?url=http://x/y", "/a"),
        (b"http://x/a", "/a"),
        (b"http://x?q=/y", "/"),
        (b"//a", "//a"),
        (b"/%ff", "/\N{REPLACEMENT CHARACTER}"),
    ],
)
@trio_test
async def test_a_target_is_a_path(target: bytes, path: str, autojump_clock: MockClock) -> None:
    """Whatever is in it."""
    async with serving(echo) as site:
        response = await site.connect().ask(b"OPTIONS %b HTTP/1.1\r\nhost: x\r\n\r\n" % target)
    assert response.body.decode() == f"OPTIONS {path} "


@trio_test
async def test_every_response_has_date_and_server(autojump_clock: MockClock) -> None:
    """Also the server's own."""
    async with serving(echo, server_name="penstock") as site:
        for request in (GET, b"nonsense\r\n\r\n"):
            headers = (await site.connect().ask(request)).headers
            assert headers["server"] == "penstock"
            assert headers["date"].endswith(" GMT")


async def _stream(scope: Scope, receive: Receive, send: Send) -> None:
    await send(start())
    await send(part(b"one"))
    await send(part(b""))
    await send(part(b"two"))
    await send(part(b"", more=False))


@trio_test
async def test_a_body_without_length_is_chunked(autojump_clock: MockClock) -> None:
    """One chunk for each non-empty part; an empty part is not the terminator; the connection goes on."""
    async with serving(_stream) as site:
        client = site.connect()
        for _ in range(2):
            await client.send(GET)
            head = await client.read_head()
            assert head.headers["transfer-encoding"] == "chunked"
            assert await client.read_until(b"0\r\n\r\n") == b"3\r\none\r\n3\r\ntwo\r\n0\r\n\r\n"


@trio_test
async def test_http_1_0_gets_a_body_that_ends_with_the_connection(autojump_clock: MockClock) -> None:
    """An HTTP/1.0 client does not support chunks."""
    async with serving(_stream) as site:
        client = site.connect()
        await client.send(b"GET / HTTP/1.0\r\n\r\n")
        head = await client.read_head()
        assert "transfer-encoding" not in head.headers
        assert head.headers["connection"] == "close"
        assert await client.read_rest() == b"onetwo"


@trio_test
async def test_head_gets_the_head_alone(autojump_clock: MockClock) -> None:
    """The body that the application sends is dropped, its length kept, and the connection goes on."""
    async with serving(echo) as site:
        client = site.connect()
        await client.send(b"HEAD /a HTTP/1.1\r\nhost: x\r\n\r\n")
        assert (await client.read_response(to_head=True)).headers["content-length"] == "8"
        assert (await client.ask()).body == b"GET / "


@pytest.mark.parametrize("status", [204, 304])
@trio_test
async def test_a_status_without_body_has_none(status: int, autojump_clock: MockClock) -> None:
    """The application's body is dropped: the client would read it as the next response."""

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        await send(start(status=status))
        await send(part(b"junk", more=False))

    async with serving(app) as site:
        client = site.connect()
        for _ in range(2):
            await client.send(GET)
            assert (await client.read_response()).status == status


@trio_test
async def test_connection_close_is_obeyed_and_said(autojump_clock: MockClock) -> None:
    """A client that asks for it gets `Connection: close` and the end of the connection."""
    async with serving(echo) as site:
        client = site.connect()
        response = await client.ask(b"GET / HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n")
        assert response.headers["connection"] == "close"
        assert await client.read_rest() == b""


@trio_test
async def test_head_and_first_event_leave_together(autojump_clock: MockClock) -> None:
    """One packet less before the first token; and the last part is sent with the terminator."""
    async with serving(_stream) as site:
        client = Client(site.listener.connect(lockstep=True))
        await client.send(GET)
        first = bytes(await client.stream.receive_some(65536))
        assert first.endswith(b"\r\n\r\n3\r\none\r\n")


@trio_test
async def test_a_client_that_expects_100_gets_it_when_the_body_is_wanted(autojump_clock: MockClock) -> None:
    """`100 Continue` answers the application's first receive, not the headers."""
    may_read = trio.Event()

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        await may_read.wait()
        await respond(send, await read_body(receive))

    async with serving(app) as site:
        client = site.connect()
        request = post(b"body", headers=b"expect: 100-continue\r\n")
        await client.send(request.removesuffix(b"body"))
        with trio.move_on_after(5) as quiet:
            await client.read_head()
        assert quiet.cancelled_caught
        may_read.set()
        assert (await client.read_head()).status == 100
        await client.send(b"body")
        assert (await client.read_response()).body == b"body"
        assert (await client.ask()).status == 200


@trio_test
async def test_a_refused_upload_is_never_asked_for(autojump_clock: MockClock) -> None:
    """An application that answers without reading sends no 100, and announces the end of the connection; but
    it keeps it where the body has come, which is not parsed as the next request."""

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        await respond(send, b"no", status=401)

    async with serving(app) as site:
        client = site.connect()
        came = await client.ask(post(b"GET /not-a-request HTTP/1.1\r\n\r\n"))
        assert (came.status, "connection" in came.headers) == (401, False)
        await client.send(post(b"body", headers=b"expect: 100-continue\r\n").removesuffix(b"body"))
        response = await client.read_response()
        assert (response.status, response.headers["connection"]) == (401, "close")
        assert await client.read_rest() == b""


@trio_test
async def test_an_upgrade_is_answered_as_plain_http(autojump_clock: MockClock) -> None:
    """WebSockets are not supported; the request is served as if the header were absent."""
    head = b"GET / HTTP/1.1\r\nhost: x\r\nupgrade: websocket\r\nconnection: upgrade\r\n\r\n"
    async with serving(echo) as site:
        client = site.connect()
        assert (await client.ask(head)).status == 200
        assert (await client.ask()).status == 200


@pytest.mark.parametrize("version", [b"1.0", b"1.1"])
@pytest.mark.parametrize("method", [b"GET", b"HEAD", b"POST"])
@pytest.mark.parametrize("status", [200, 204, 304, 404])
@pytest.mark.parametrize(
    "headers",
    [[], [(b"Content-Length", b"2")], [(b"Transfer-Encoding", b"chunked")]],
    ids=["none", "length", "te"],
)
def test_our_framing_is_h11s(version: bytes, method: bytes, status: int, headers: list[Any]) -> None:
    """Chunks framed by hand are framed exactly where h11 would have framed them."""
    parser = h11.Connection(h11.SERVER)
    parser.receive_data(b"%b / HTTP/%b\r\nhost: x\r\n\r\n" % (method, version))
    request = parser.next_event()
    assert isinstance(request, h11.Request)
    head = response_head(request, status, headers, close=False)
    parser.send(head.response)
    if head.is_chunked:
        assert parser.send(h11.Data(data=b"ab")) == b"2\r\nab\r\n"
        assert parser.send(h11.EndOfMessage()) == b"0\r\n\r\n"
    elif version == b"1.0" or headers or method == b"HEAD" or status in (204, 304):
        assert type(parser._writer).__name__ != "ChunkedWriter"
