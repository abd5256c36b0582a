"""The server: listeners in, one task for each connection, and the drain that ends them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, TypeVar

import trio

from api.server.asgi import Application, OnError
from api.server.connection import Connection, refuse_connection
from api.server.exchange import Service
from api.server.limits import Limits
from api.server.refusals import Refusal
from api.server.statistics import ServerStatistics, Tally

_StreamT = TypeVar("_StreamT", bound=trio.abc.HalfCloseableStream)


class Server:
    """Serves one application once: `run` it, and end it by a drain or by cancelling `run`.

    `on_error` is told of every exception of the application and of the server itself; none of them reaches
    another connection. Each request's scope gets its own shallow copy of `state`.
    """

    def __init__(
        self,
        app: Application,
        limits: Limits | None = None,
        *,
        on_error: OnError,
        state: Mapping[str, Any] | None = None,
    ) -> None:
        self._limits = limits or Limits()
        self._on_error = on_error
        self._state = dict(state or {})
        self._service = Service(app, on_error, self.is_draining)
        self._tally = Tally()
        self._connections: set[Connection] = set()
        self._refusing = 0
        self._accepting = trio.CancelScope()
        self._serving = trio.CancelScope()
        self._draining = False
        self._started = False
        self._ended = trio.Event()

    async def run(
        self,
        listeners: Sequence[trio.abc.Listener[_StreamT]],
        *,
        task_status: trio.TaskStatus[Sequence[trio.abc.Listener[_StreamT]]] = trio.TASK_STATUS_IGNORED,
    ) -> None:
        """Owns and closes the listeners. Returns when a drain has ended."""
        assert not self._started, "a server runs once"
        self._started = True
        try:
            with self._serving:
                async with trio.open_nursery() as connections:
                    with self._accepting:
                        await trio.serve_listeners(
                            self._serve, list(listeners), handler_nursery=connections, task_status=task_status
                        )
        finally:
            self._ended.set()

    def start_drain(self, drain_seconds: float) -> None:
        """Accepts no more, closes idle connections, and after `drain_seconds` everything else.

        Asked again, it can only bring that deadline forward.
        """
        self._serving.deadline = min(self._serving.deadline, trio.current_time() + drain_seconds)
        if not self._draining:
            self._draining = True
            self._accepting.cancel()
            for connection in self._connections:
                connection.close_if_idle()

    async def drain(self, drain_seconds: float) -> None:
        """`start_drain`, then waits until nothing is left; at once if `run` was never called."""
        self.start_drain(drain_seconds)
        if self._started:
            await self._ended.wait()

    def is_draining(self) -> bool:
        return self._draining

    def statistics(self) -> ServerStatistics:
        return self._tally.snapshot()

    async def _serve(self, stream: trio.abc.HalfCloseableStream) -> None:
        """One connection, from accept on. Raises only Cancelled; `serve_listeners` closes the stream."""
        try:
            if len(self._connections) < self._limits.connections:
                await self._serve_connection(stream)
            else:
                await self._refuse_connection(stream)
        except Exception as error:
            self._on_error(error, "connection")
        except BaseExceptionGroup as group:
            errors, rest = group.split(Exception)
            if errors is not None:
                self._on_error(errors, "connection")
            if rest is not None:
                raise rest from None

    async def _serve_connection(self, stream: trio.abc.HalfCloseableStream) -> None:
        connection = Connection(stream, self._service, self._limits, self._tally, self._state)
        self._connections.add(connection)
        self._tally.accepted_connections += 1
        self._tally.open_connections += 1
        try:
            await connection.serve()
        finally:
            self._tally.open_connections -= 1
            self._connections.discard(connection)

    async def _refuse_connection(self, stream: trio.abc.HalfCloseableStream) -> None:
        self._tally.refusals[Refusal.TOO_MANY_CONNECTIONS] += 1
        if self._refusing >= self._limits.refusals:
            return
        self._refusing += 1
        try:
            await refuse_connection(stream, self._limits)
        finally:
            self._refusing -= 1
