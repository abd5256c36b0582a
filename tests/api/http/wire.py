"""A server on memory streams, and a client that writes and reads raw bytes."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from typing import TypeAlias

import trio
import trio.testing
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from api.http.exchange import Service
from api.http.limits import Limits
from api.http.server import Server

Duplex: TypeAlias = trio.abc.HalfCloseableStream
GET = b"GET / HTTP/1.1\r\nhost: x\r\n\r\n"


def post(body: bytes, *, headers: bytes = b"") -> bytes:
    return b"POST / HTTP/1.1\r\nhost: x\r\n%bcontent-length: %d\r\n\r\n%b" % (headers, len(body), body)


def post_chunked(*chunks: bytes) -> bytes:
    frames = b"".join(b"%x\r\n%b\r\n" % (len(chunk), chunk) for chunk in (*chunks, b""))
    return b"POST / HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\n" + frames


class MemoryListener(trio.abc.Listener[Duplex]):
    def __init__(self) -> None:
        self._send, self._receive = trio.open_memory_channel[Duplex](1000)

    async def accept(self) -> Duplex:
        return await self._receive.receive()

    async def aclose(self) -> None:
        self._receive.close()
        await trio.lowlevel.checkpoint()

    def connect(self, *, lockstep: bool = False) -> Duplex:
        """`lockstep`: a write ends only when the other side has read it, as with a full socket buffer."""
        pair = trio.testing.lockstep_stream_pair() if lockstep else trio.testing.memory_stream_pair()
        self.deliver(pair[1])
        return pair[0]

    def deliver(self, stream: Duplex) -> None:
        self._send.send_nowait(stream)


@dataclass
class Response:
    status: int
    headers: dict[str, str]
    body: bytes


class Client:
    """Parses HTTP responses itself: an independent check of h11's output."""

    def __init__(self, stream: Duplex) -> None:
        self.stream = stream
        self._buffer = b""

    async def send(self, data: bytes) -> None:
        await self.stream.send_all(data)

    async def upload(self, *pieces: bytes) -> None:
        """Send until the server closes."""
        with suppress(trio.BrokenResourceError, trio.ClosedResourceError):
            for piece in pieces:
                await self.stream.send_all(piece)

    async def send_bytewise(self, data: bytes) -> None:
        for at in range(len(data)):
            await self.stream.send_all(data[at : at + 1])

    async def _more(self) -> None:
        data = await self.stream.receive_some(65536)
        if not data:
            raise EOFError(self._buffer)
        self._buffer += bytes(data)

    async def read_until(self, mark: bytes) -> bytes:
        """Read up to the mark. Raise EOFError with what arrived before the end."""
        while mark not in self._buffer:
            await self._more()
        end = self._buffer.index(mark) + len(mark)
        taken, self._buffer = self._buffer[:end], self._buffer[end:]
        return taken

    async def _read_exactly(self, count: int) -> bytes:
        while len(self._buffer) < count:
            await self._more()
        taken, self._buffer = self._buffer[:count], self._buffer[count:]
        return taken

    async def read_rest(self) -> bytes:
        """Read to the end of the connection."""
        try:
            while True:
                await self._more()
        except (EOFError, trio.BrokenResourceError):
            taken, self._buffer = self._buffer, b""
            return taken

    async def read_chunk(self) -> bytes:
        size = int(await self.read_until(b"\r\n"), 16)
        return (await self._read_exactly(size + 2))[:-2]

    async def read_head(self) -> Response:
        head = (await self.read_until(b"\r\n\r\n")).decode("latin-1").split("\r\n")
        fields = (line.partition(": ") for line in head[1:] if line)
        return Response(int(head[0].split(" ")[1]), {name.lower(): value for name, _, value in fields}, b"")

    async def read_response(self, *, to_head: bool = False) -> Response:
        response = await self.read_head()
        if to_head or response.status in (204, 304):
            return response
        if response.headers.get("transfer-encoding") == "chunked":
            while chunk := await self.read_chunk():
                response.body += chunk
        elif "content-length" in response.headers:
            response.body = await self._read_exactly(int(response.headers["content-length"]))
        elif response.status >= 200:
            response.body = await self.read_rest()
        return response

    async def ask(self, request: bytes = GET) -> Response:
        await self.send(request)
        return await self.read_response()

    async def close(self) -> None:
        await self.stream.aclose()


@dataclass
class Site:
    server: Server
    listener: MemoryListener
    nursery: trio.Nursery
    errors: list[tuple[BaseException, str]] = field(default_factory=list)
    ended: trio.Event = field(default_factory=trio.Event)

    def connect(self, *, lockstep: bool = False) -> Client:
        return Client(self.listener.connect(lockstep=lockstep))


@asynccontextmanager
async def serving(
    app: ASGIApp,
    limits: Limits | None = None,
    *,
    server_name: str | None = None,
    always_answered: Sequence[str] = (),
    account_of: Callable[[Scope], str] = lambda scope: "",
    on_freed: Callable[[], None] = lambda: None,
) -> AsyncIterator[Site]:
    """Fail the test if the server reported an error that the test did not take out of `errors`."""
    errors: list[tuple[BaseException, str]] = []
    service = Service(
        app, lambda error, request: errors.append((error, request)), server_name, always_answered, account_of
    )
    server = Server(service, limits, on_freed)
    async with trio.open_nursery() as nursery:
        site = Site(server, MemoryListener(), nursery, errors)

        async def run() -> None:
            await server.run([site.listener])
            site.ended.set()

        nursery.start_soon(run)
        yield site
        nursery.cancel_scope.cancel()
    assert site.errors == []


async def read_body(receive: Receive) -> bytes:
    body = b""
    while True:
        message = await receive()
        assert message["type"] == "http.request", message
        body += bytes(message["body"])
        if not message["more_body"]:
            return body


def start(*headers: tuple[bytes, bytes], status: int = 200) -> Message:
    return {"type": "http.response.start", "status": status, "headers": list(headers)}


def part(body: bytes, *, more: bool = True) -> Message:
    return {"type": "http.response.body", "body": body, "more_body": more}


async def respond(send: Send, body: bytes, *, status: int = 200) -> None:
    await send(start((b"content-length", b"%d" % len(body)), status=status))
    await send(part(body, more=False))


async def echo(scope: Scope, receive: Receive, send: Send) -> None:
    """Answers with method, path and body."""
    body = await read_body(receive)
    await respond(send, f"{scope['method']} {scope['path']} ".encode() + body)


class Ticker:
    """Sends an event every second, `count` of them or without end, and records how it ended."""

    def __init__(self, count: int | None = None) -> None:
        self.count = count
        self.cancelled_at: list[float] = []

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await send(start((b"content-type", b"text/event-stream")))
            sent = 0
            while sent != self.count:
                await send(part(b"data: x\n\n"))
                sent += 1
                await trio.sleep(1)
            await send(part(b"", more=False))
        except trio.Cancelled:
            self.cancelled_at.append(trio.current_time())
            raise


class Sleeper:
    """Reads the body, then waits forever and records when it was cancelled."""

    def __init__(self) -> None:
        self.started = trio.Event()
        self.cancelled_at: list[float] = []

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await read_body(receive)
        self.started.set()
        try:
            await trio.sleep_forever()
        except trio.Cancelled:
            self.cancelled_at.append(trio.current_time())
            raise
