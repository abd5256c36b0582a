"""Behaviour that only the kernel shows: full socket buffers, resets, many connections, socket options. Real
time."""

from __future__ import annotations

import socket
import struct
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import pytest
import trio
from trio.testing import trio_test

from api.http.asgi import Application, Receive, Scope, Send
from api.http.limits import Limits
from api.http.refusals import Refusal
from api.http.server import Server
from tests.api.http.wire import GET, Client, Sleeper, part, respond, start

STALLED = b"GET /stalled HTTP/1.1\r\nhost: x\r\n\r\n"


class Port:
    def __init__(self, server: Server, number: int) -> None:
        self.server = server
        self.number = number
        self.errors: list[BaseException] = []
        self._clients: list[Client] = []

    async def connect(self, *, receive_buffer: int | None = None) -> Client:
        connection = trio.socket.socket(socket.AF_INET, socket.SOCK_STREAM)
        if receive_buffer is not None:
            # Set before connect; otherwise the window is larger already.
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer)
        await connection.connect(("127.0.0.1", self.number))
        self._clients.append(Client(trio.SocketStream(connection)))
        return self._clients[-1]

    async def close(self) -> None:
        for client in self._clients:
            await trio.aclose_forcefully(client.stream)


@asynccontextmanager
async def listening(
    app: Application, limits: Limits | None = None, *, seconds: float = 20
) -> AsyncIterator[Port]:
    """Fail the test if the server reported an error that the test did not take out of `errors`."""
    listeners = await trio.open_tcp_listeners(0, host="127.0.0.1")
    errors: list[BaseException] = []
    server = Server(app, limits, on_error=lambda error, request: errors.append(error))
    port = Port(server, listeners[0].socket.getsockname()[1])
    port.errors = errors
    async with trio.open_nursery() as nursery:
        await nursery.start(server.run, listeners)
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


class Flood:
    """Writes forever on /stalled, and at the pace of `ticks` elsewhere."""

    def __init__(self) -> None:
        self.cancelled = 0
        self.written = 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await send(start())
        try:
            if scope["path"] == "/stalled":
                while True:
                    await send(part(b"x" * 65536))
                    self.written += 65536
            for _ in range(50):
                await send(part(b"data: x\n\n"))
                await trio.sleep(0.005)
            await send(part(b"", more=False))
        except trio.Cancelled:
            self.cancelled += 1
            raise


@trio_test
async def test_readers_that_never_read_are_cut_and_slow_nobody() -> None:
    """Four clients with full buffers are disconnected after write_seconds; their bytes do not pile up."""
    app = Flood()
    async with listening(app, Limits(write_seconds=0.4)) as port:
        for _ in range(4):
            await (await port.connect(receive_buffer=4096)).send(STALLED)
        began = trio.current_time()
        response = await (await port.connect()).ask()
        assert response.body == b"data: x\n\n" * 50
        assert trio.current_time() - began < 15
        await _until(lambda: app.cancelled == 4)
        # Counted when the connection is closed, a moment after its handler is cancelled.
        await _until(lambda: port.server.statistics().refusals_total[Refusal.WRITE_TIMEOUT] == 4)
        assert app.written < 4 * 8 * 1024 * 1024


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
    """413 is not overtaken by a reset, although the client has megabytes in transit."""

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        raise AssertionError("not called")

    async with listening(app) as port:
        client = await port.connect()
        async with trio.open_nursery() as nursery:

            async def upload() -> None:
                try:
                    await client.send(b"POST / HTTP/1.1\r\nhost: x\r\ncontent-length: 67108864\r\n\r\n")
                    await client.send(b"x" * 8 * 1024 * 1024)
                except (trio.BrokenResourceError, trio.ClosedResourceError):
                    pass

            nursery.start_soon(upload)
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
async def test_sockets_send_small_events_at_once_and_say_whose_they_are() -> None:
    """TCP_NODELAY is set on accepted sockets, and the scope has both addresses."""
    scopes: list[Scope] = []

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        scopes.append(scope)
        await respond(send, b"ok")

    listeners = await trio.open_tcp_listeners(0, host="127.0.0.1")
    accepted: list[trio.SocketStream] = []

    class Watching(trio.abc.Listener[trio.SocketStream]):
        async def accept(self) -> trio.SocketStream:
            accepted.append(await listeners[0].accept())
            return accepted[-1]

        async def aclose(self) -> None:
            await listeners[0].aclose()

    server = Server(app, on_error=lambda error, request: None)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(server.run, [Watching()])
        port = Port(server, listeners[0].socket.getsockname()[1])
        client = await port.connect()
        await client.ask()
        assert isinstance(client.stream, trio.SocketStream)
        assert accepted[0].getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY) != 0
        assert scopes[0]["client"] == client.stream.socket.getsockname()
        assert scopes[0]["server"] == ("127.0.0.1", port.number)
        await client.close()
        nursery.cancel_scope.cancel()
