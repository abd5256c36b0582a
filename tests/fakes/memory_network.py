"""A network in memory between an httpx client and our own server, on the test's clock.

Every byte goes through the real client, the real HTTP parsers and the real server; only the sockets are
missing, so that latencies are exactly the application's.
"""

from __future__ import annotations

import ssl
from collections.abc import Iterable
from typing import Any

import httpcore
import httpx
import trio
import trio.testing
from starlette.types import ASGIApp

from api.http.exchange import Service
from api.http.server import Server


class _Stream(httpcore.AsyncNetworkStream):
    def __init__(self, stream: trio.StapledStream[Any, Any]) -> None:
        self._stream = stream

    async def read(self, max_bytes: int, timeout: float | None = None) -> bytes:
        with trio.move_on_after(float("inf") if timeout is None else timeout):
            return bytes(await self._stream.receive_some(max_bytes))
        raise httpcore.ReadTimeout

    async def write(self, buffer: bytes, timeout: float | None = None) -> None:
        try:
            await self._stream.send_all(buffer)
        except trio.BrokenResourceError as error:
            raise httpcore.WriteError from error

    async def aclose(self) -> None:
        await self._stream.aclose()

    async def start_tls(
        self,
        ssl_context: ssl.SSLContext,
        server_hostname: str | None = None,
        timeout: float | None = None,
    ) -> httpcore.AsyncNetworkStream:
        raise AssertionError("there is no TLS in memory")


class MemoryNetwork(httpcore.AsyncNetworkBackend):
    """One server, reachable under any name; `refusing` makes every connect fail."""

    def __init__(self) -> None:
        self._send, self._accept = trio.open_memory_channel[Any](1000)
        self.refusing = False
        self.failures: list[BaseException] = []
        """Exceptions of the application: a script that cuts a stream raises one."""

    async def connect_tcp(
        self,
        host: str,
        port: int,
        timeout: float | None = None,
        local_address: str | None = None,
        socket_options: Iterable[Any] | None = None,
    ) -> httpcore.AsyncNetworkStream:
        await trio.lowlevel.checkpoint()
        if self.refusing:
            raise httpcore.ConnectError("refused")
        return _Stream(self.connect())

    def connect(self) -> trio.StapledStream[Any, Any]:
        """A connection of bytes, for clients that are not httpx."""
        ours, theirs = trio.testing.memory_stream_pair()
        self._send.send_nowait(theirs)
        return ours

    async def connect_unix_socket(
        self, path: str, timeout: float | None = None, socket_options: Iterable[Any] | None = None
    ) -> httpcore.AsyncNetworkStream:
        raise AssertionError("there are no sockets in memory")

    async def sleep(self, seconds: float) -> None:
        await trio.sleep(seconds)

    async def serve(self, app: ASGIApp) -> None:
        """Never returns by itself."""
        server = Server(Service(app, lambda error, request: self.failures.append(error)))
        await server.run([_Listener(self._accept)])

    def client(self) -> httpx.AsyncClient:
        transport = httpx.AsyncHTTPTransport(
            verify=False
        )  # There is no TLS; reading authorities takes 30 ms.
        # httpx has no parameter for the network below it.
        transport._pool = httpcore.AsyncConnectionPool(network_backend=self)
        timeout = httpx.Timeout(60.0, pool=None)
        return httpx.AsyncClient(transport=transport, base_url="http://memory", timeout=timeout)


class _Listener(trio.abc.Listener[Any]):
    def __init__(self, accept: trio.MemoryReceiveChannel[Any]) -> None:
        self._accept = accept

    async def accept(self) -> Any:
        return await self._accept.receive()

    async def aclose(self) -> None:
        await self._accept.aclose()
