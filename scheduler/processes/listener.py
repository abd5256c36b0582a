"""The server's port for engines on other machines: it checks each connection's Hello and hands it over.

A connection that has not identified itself costs at most a descriptor, a kilobyte and a second; there are at
most 64 of them.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import structlog
import trio

from scheduler.errors import LinkError
from scheduler.shared.framing import encode
from scheduler.shared.hello import (
    FirstFrame,
    HelloRefused,
    HelloReply,
    check_hello,
    read_hello,
)
from scheduler.shared.keep_alive import keep_alive
from scheduler.shared.messages import PROTOCOL_VERSION

_log = structlog.get_logger("link")
_ACCEPT_PAUSE_SECONDS = 0.1
MOST_UNIDENTIFIED = 64
IDENTIFY_SECONDS = 1.0
_LOG_SECONDS = 10.0
"""Refusals of strangers are logged once in this time, with their number: they must not fill the disk."""


@dataclass(frozen=True, slots=True)
class Dialed:
    """A connection that has identified itself. `host`: the dialer's machine, as it names itself;
    `address`: as the connection shows it."""

    stream: trio.abc.Stream
    host: str
    address: str = ""


class Listener:
    """Accepts connections for as long as `serve` runs."""

    def __init__(self, token: str, arrived: Callable[[Dialed], None]) -> None:
        """`arrived` gets each connection that has the token, which is then its own to close; it does not
        wait."""
        self._token = token
        self._arrived = arrived
        self.unidentified = 0
        self._refused = 0
        self._logged_at: float | None = None

    async def serve(
        self, host: str, port: int, *, task_status: trio.TaskStatus[int] = trio.TASK_STATUS_IGNORED
    ) -> None:
        """Accept connections until cancelled. Starts with the port, a free one if `port` is 0. Raise OSError
        if the port cannot be listened on."""
        listeners = await trio.open_tcp_listeners(port, host=host)
        task_status.started(listeners[0].socket.getsockname()[1])
        async with trio.open_nursery() as nursery:
            for listener in listeners:
                nursery.start_soon(self._accept, listener, nursery)

    async def _accept(self, listener: trio.SocketListener, nursery: trio.Nursery) -> None:
        # trio.serve_listeners would close a connection when its handler returns.
        async with listener:
            while True:
                try:
                    stream = await listener.accept()
                except OSError as error:
                    # No descriptor is free, or the dialer has left already.
                    self._note(str(error))
                    await trio.sleep(_ACCEPT_PAUSE_SECONDS)
                else:
                    nursery.start_soon(self._welcome, stream)

    async def _welcome(self, stream: trio.SocketStream) -> None:
        try:
            keep_alive(stream.setsockopt)
            address = str(stream.socket.getpeername()[0])
        except OSError:
            # It is gone already.
            await trio.aclose_forcefully(stream)
            return
        await self.identify(stream, address)

    async def identify(self, stream: trio.abc.Stream, address: str = "") -> None:
        """Read a new connection's Hello; hand the connection over or close it."""
        if self.unidentified >= MOST_UNIDENTIFIED:
            self._note("too many connections have not identified themselves")
            await trio.aclose_forcefully(stream)
            return
        self.unidentified += 1
        kept = False
        try:
            with trio.move_on_after(IDENTIFY_SECONDS) as limit:
                dialed = Dialed(stream, await self._identify(stream), address)
                kept = True
            if limit.cancelled_caught:
                self._note(f"no Hello within {IDENTIFY_SECONDS:g} s")
        except (trio.BrokenResourceError, trio.ClosedResourceError):
            pass  # It has left.
        except (LinkError, HelloRefused) as error:
            self._note(str(error))
        finally:
            self.unidentified -= 1
            if not kept:
                await trio.aclose_forcefully(stream)
        if kept:
            self._arrived(dialed)

    async def _identify(self, stream: trio.abc.Stream) -> str:
        """Return the dialer's machine. Raise LinkError or HelloRefused."""
        frame = FirstFrame()
        while frame.wanted:
            frame.take(await stream.receive_some(frame.wanted))
        hello = read_hello(frame.body)
        try:
            check_hello(hello, self._token)
        except HelloRefused as refused:
            await stream.send_all(encode(HelloReply(PROTOCOL_VERSION, str(refused))))
            raise
        await stream.send_all(encode(HelloReply(PROTOCOL_VERSION)))
        return hello.host

    def _note(self, reason: str) -> None:
        self._refused += 1
        now = trio.current_time()
        if self._logged_at is None or now - self._logged_at >= _LOG_SECONDS:
            self._logged_at = now
            _log.warning("connection_refused", reason=reason, refused=self._refused)
