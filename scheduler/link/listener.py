"""The front's port: other machines dial it, say who they are, and are handed to those who wait for them.

Until it is identified a connection costs a descriptor, a kilobyte and a second, and 64 of them at most.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

import structlog
import trio

from scheduler.errors import LinkError
from scheduler.link.framing import LENGTH_BYTES, encode
from scheduler.link.hello import (
    MOST_HELLO_BYTES,
    Expectations,
    Expected,
    HelloRefused,
    HelloReply,
    read_hello,
    version_refusal,
)
from scheduler.link.keep_alive import keep_alive
from scheduler.link.messages import PROTOCOL_VERSION

_log = structlog.get_logger("link")
_ACCEPT_PAUSE_SECONDS = 0.1
MOST_UNIDENTIFIED = 64
IDENTIFY_SECONDS = 1.0
_LOG_SECONDS = 10.0
"""Refusals of strangers are logged once in this time, with their number: they must not fill the disk."""


@dataclass(frozen=True, slots=True)
class Dialed:
    """A connection that has identified itself. `host`: the dialer's machine, as it names itself."""

    stream: trio.abc.Stream
    host: str


@dataclass(eq=False, slots=True)
class Awaited(Expected):
    """One connection that somebody waits for, from `Listener.expect`."""

    _arrived: trio.Event = field(default_factory=trio.Event)
    _dialed: Dialed | None = None
    refusal: str = ""
    """Why a dialer with the right token is not let in."""

    async def arrive(self) -> Dialed:
        """Return the connection, which is then the caller's to close. Raise HelloRefused if a dialer with the
        right token is not let in, LinkError if it has left before it was."""
        await self._arrived.wait()
        if self.refusal:
            raise HelloRefused(self.refusal)
        if self._dialed is None:
            raise LinkError("the dialer left while it connected")
        dialed, self._dialed = self._dialed, None
        return dialed

    def let_in(self, dialed: Dialed) -> None:
        self._dialed = dialed
        self._arrived.set()

    def refuse(self, refusal: str) -> None:
        """`refusal` empty: it has left."""
        self.refusal = refusal
        self._arrived.set()

    async def aclose(self) -> None:
        """Close a connection that nobody has fetched."""
        if self._dialed is not None:
            await trio.aclose_forcefully(self._dialed.stream)


class Listener:
    """Accepts connections for as long as `serve` runs."""

    def __init__(self) -> None:
        self._expected: Expectations[Awaited] = Expectations()
        self.unidentified = 0
        self._refused = 0
        self._logged_at: float | None = None

    @asynccontextmanager
    async def expect(self, role: str) -> AsyncIterator[Awaited]:
        """Let one connection in, which names this role and the new token of what is returned, until the block
        ends."""
        awaited = Awaited(role)
        self._expected.add(awaited)
        try:
            yield awaited
        finally:
            self._expected.forget(awaited)
            await awaited.aclose()

    async def serve(
        self, host: str, port: int, *, task_status: trio.TaskStatus[int] = trio.TASK_STATUS_IGNORED
    ) -> None:
        """Never returns by itself. Starts with the port, which for 0 is a free one. Raise OSError if it
        cannot be listened on."""
        listeners = await trio.open_tcp_listeners(port, host=host)
        if port == 0 and len(listeners) > 1:
            # Each family got a port of its own: keep one.
            for other in listeners[1:]:
                await other.aclose()
            listeners = listeners[:1]
        task_status.started(listeners[0].socket.getsockname()[1])
        async with trio.open_nursery() as nursery:
            for listener in listeners:
                nursery.start_soon(self._accept, listener, nursery)

    async def _accept(self, listener: trio.SocketListener, nursery: trio.Nursery) -> None:
        # Not trio.serve_listeners, which closes a connection when its handler returns.
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
            keep_alive(stream)
        except OSError:
            # It is gone already.
            await trio.aclose_forcefully(stream)
            return
        await self.identify(stream)

    async def identify(self, stream: trio.abc.Stream) -> None:
        """Read a new connection's Hello; hand the connection over or close it."""
        if self.unidentified >= MOST_UNIDENTIFIED:
            self._note("too many connections have not identified themselves")
            await trio.aclose_forcefully(stream)
            return
        self.unidentified += 1
        kept = False
        try:
            with trio.move_on_after(IDENTIFY_SECONDS) as limit:
                kept = await self._identify(stream)
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

    async def _identify(self, stream: trio.abc.Stream) -> bool:
        """Return whether the connection has found who waits for it."""
        length = int.from_bytes(await _read_exactly(stream, LENGTH_BYTES), "big")
        if length > MOST_HELLO_BYTES:
            raise LinkError(f"its first frame announces {length} bytes: no Hello has that many")
        hello = read_hello(await _read_exactly(stream, length))
        try:
            awaited = self._expected.take(hello)
        except HelloRefused as refused:
            await stream.send_all(encode(HelloReply(PROTOCOL_VERSION, str(refused))))
            raise
        refusal = version_refusal(hello)
        sent = False
        try:
            await stream.send_all(encode(HelloReply(PROTOCOL_VERSION, refusal)))
            sent = True
        finally:
            # Its token is spent in any case.
            if sent and not refusal:
                awaited.let_in(Dialed(stream, hello.host))
            else:
                awaited.refuse(refusal)
        return not refusal

    def _note(self, reason: str) -> None:
        self._refused += 1
        now = trio.current_time()
        if self._logged_at is None or now - self._logged_at >= _LOG_SECONDS:
            self._logged_at = now
            _log.warning("connection_refused", reason=reason, refused=self._refused)


async def _read_exactly(stream: trio.abc.Stream, count: int) -> bytes:
    """Not a byte more: what follows belongs to the one who gets the connection. Raise LinkError at end of
    file."""
    data = b""
    while len(data) < count:
        piece = await stream.receive_some(count - len(data))
        if not piece:
            raise LinkError("it ended before its Hello")
        data += piece
    return data
