"""The front's connection to one host process: what the engine there writes to stderr, how it ends, and orders
to end it."""

from __future__ import annotations

from collections import deque
from contextlib import suppress

import trio

from scheduler.cluster.host_messages import (
    AbortEngine,
    EngineExited,
    EngineStarted,
    FromHost,
    KillEngine,
    NotStarted,
    StderrOutput,
    front_inbound,
)
from scheduler.errors import LinkError
from scheduler.link.framing import encode
from scheduler.link.stderr_tail import StderrTail

_READ_BYTES = 1 << 16


class HostLink:
    """First `started`, then `follow` for as long as the engine lives."""

    def __init__(self, stream: trio.abc.Stream, host: str) -> None:
        self.host = host
        self.returncode: int | None = None
        """Of the engine; None: it has not ended, or nobody knows."""
        self.ended = trio.Event()
        """The engine has ended, or its host process has, so that nothing more will be known."""
        self._stream = stream
        self._reader = front_inbound()
        self._received: deque[FromHost] = deque()
        self._tail = StderrTail(host=host)

    @property
    def last_stderr(self) -> tuple[str, ...]:
        return self._tail.lines

    async def started(self) -> int | str:
        """Return the engine's process id, or why there is none."""
        try:
            match await self._receive():
                case EngineStarted(pid=pid):
                    return pid
                case NotStarted(reason=reason):
                    return reason
                case None:
                    return f"the host process on {self.host} ended without a word"
                case other:
                    return f"host {self.host} sent {type(other).__name__} before the engine was started"
        except LinkError as error:
            return f"host {self.host}: {error}"

    async def follow(self) -> None:
        """Return when the engine or its host process has ended."""
        try:
            while not isinstance(message := await self._receive(), EngineExited | None):
                if isinstance(message, StderrOutput):
                    self._tail.feed(message.data)
            if message is not None:
                self.returncode = message.returncode
        except LinkError:
            pass  # It is no host process any more: as if it had ended.
        finally:
            self._tail.end()
            self.ended.set()

    async def order(self, order: AbortEngine | KillEngine) -> None:
        """Send an order; a host process that is gone has carried it out."""
        with suppress(trio.BrokenResourceError, trio.ClosedResourceError):
            await self._stream.send_all(encode(order))

    async def aclose(self) -> None:
        """The host process ends its engine, if it still has one, and itself."""
        await trio.aclose_forcefully(self._stream)

    async def _receive(self) -> FromHost | None:
        """Return None when the host process is gone. Raise LinkError."""
        while not self._received:
            try:
                data = await self._stream.receive_some(_READ_BYTES)
            except (trio.BrokenResourceError, trio.ClosedResourceError):
                return None
            if not data:
                return None
            self._received.extend(self._reader.feed(data))
        return self._received.popleft()
