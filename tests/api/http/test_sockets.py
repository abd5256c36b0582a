"""Behaviour that only the kernel shows: full socket buffers, resets, many connections, socket options. Real
time."""

from __future__ import annotations

import socket
import struct
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import pytest
import trio
from starlette.types import ASGIApp, Receive, Scope, Send
from trio.testing import trio_test

from api.http.exchange import Service
from api.http.limits import Limits
from api.http.server import Server
from tests.api.http.wire import GET, Client, Sleeper, part, respond, start


class Port:
    def __init__(self, server: Server, number: int) -> None:
        self.server = server
        self.number = number
        self.errors: list[BaseException] = []
        self._clients: list[Client] = []

    async def connect(self) -> Client:
        self._clients.append(Client(await trio.open_tcp_stream("127.0.0.1", self.number)))
        return self._clients[-1]

    async def close(self) -> None:
        for client in self._clients:
            await trio.aclose_forcefully(client.stream)


@asynccontextmanager
async def listening(
    app: ASGIApp, limits: Limits | None = None, *, seconds: float = 20
) -> AsyncIterator[Port]:
    """Fail the test if the server reported an error that the test did not take out of `errors`."""
    listeners = await trio.open_tcp_listeners(0, host="127.0.0.1")
    errors: list[BaseException] = []
    server = Server(Service(app, lambda error, request: errors.append(error)), limits)
    port = Port(server, listeners[0].socket.getsockname()[1])
    port.errors = errors
    async with trio.open_nursery() as nursery:
        nursery.start_soon(server.run, listeners)
        try:
            with trio.fail_after(seconds):
                yield port
        finally:
            await port.close()
        nursery.cancel_scope.cancel()
    assert errors == []


async def _until(condition: Callable[[], bool], seconds: float = 15) -> None:
    with trio.fail_after(seconds):
        # Real time passes in the kernel, which sets no event.
        while not condition():  # noqa: ASYNC110
            await trio.sleep(0.005)


@trio_test
async def test_a_reset_cancels_the_handler() -> None:
    """RST is a disconnect, and not an error of the server."""
    app = Sleeper()
    async with listening(app) as port:
        client = await port.connect()
        await client.send(GET)
        await app.started.wait()
        assert isinstance(client.stream, trio.SocketStream)
        client.stream.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        await client.close()
        await _until(lambda: len(app.cancelled_at) == 1)
        await _until(lambda: port.server.statistics().open_connections == 0)


@trio_test
async def test_a_refused_upload_can_read_why() -> None:
    """No answer of the server itself is overtaken by a reset, although the client has megabytes in
    transit."""

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        raise AssertionError("not called")

    async with listening(app) as port:
        client = await port.connect()
        head = b"POST / HTTP/1.1\r\nhost: x\r\ncontent-length: 67108864\r\n\r\n"
        async with trio.open_nursery() as nursery:
            nursery.start_soon(client.upload, head, bytes(8 * 1024 * 1024))
            assert (await client.read_response()).status == 413
            await client.close()


@trio_test
async def test_a_close_delimited_body_cut_short_is_a_reset() -> None:
    """To an HTTP/1.0 client an orderly close would mean that the body is complete."""

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        await send(start())
        await send(part(b"half"))
        await trio.sleep(0.05)
        raise trio.TooSlowError

    async with listening(app) as port:
        client = await port.connect()
        await client.send(b"GET / HTTP/1.0\r\n\r\n")
        assert await client.read_until(b"half")
        with pytest.raises(trio.BrokenResourceError):
            await client.stream.receive_some(10)
        assert isinstance(port.errors.pop(), trio.TooSlowError)


@trio_test
async def test_the_scope_says_whose_the_sockets_are() -> None:
    scopes: list[Scope] = []

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        scopes.append(scope)
        await respond(send, b"ok")

    async with listening(app) as port:
        client = await port.connect()
        await client.ask()
        assert isinstance(client.stream, trio.SocketStream)
        assert scopes[0]["client"] == client.stream.socket.getsockname()
        assert scopes[0]["server"] == ("127.0.0.1", port.number)
