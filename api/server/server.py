"""The server: listeners, one task for each connection, and the drain that ends them."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Generic, TypeVar

import trio

from api.server.asgi import Application, OnError
from api.server.connection import Connection, refuse_connection
from api.server.exchange import Service
from api.server.limits import Limits
from api.server.refusals import Refusal
from api.server.statistics import ServerStatistics, Tally

_StreamT = TypeVar("_StreamT", bound=trio.abc.HalfCloseableStream)
_ACCEPT_RETRY_SECONDS = 0.1
_EPISODE_SECONDS = 10.0
"""Failures of accept within this time of each other are reported once."""


class Server:
    """Serves one application once: `run` it, and end it by a drain or by cancelling `run`.

    `on_error` gets every exception of the application and of the server itself; none of them reaches another
    connection. `server_name` is the `server` header of responses. Each request's scope gets its own shallow
    copy of `state`.
    """

    def __init__(
        self,
        app: Application,
        limits: Limits | None = None,
        *,
        on_error: OnError,
        server_name: str | None = None,
        state: Mapping[str, Any] | None = None,
    ) -> None:
        self._limits = limits or Limits()
        self._on_error = on_error
        self._state = dict(state or {})
        self._service = Service(app, on_error, self.is_draining, server_name)
        self._tally = Tally()
        self._connections: set[Connection] = set()
        self._refusing = 0
        self._accepting = trio.CancelScope()
        self._serving = trio.CancelScope()
        self._draining = False
        self._started = False
        self._ended = trio.Event()
        self._accept_failed_at = -math.inf

    async def run(
        self,
        listeners: Sequence[trio.abc.Listener[_StreamT]],
        *,
        task_status: trio.TaskStatus[Sequence[trio.abc.Listener[_StreamT]]] = trio.TASK_STATUS_IGNORED,
    ) -> None:
        """Own and close the listeners. Return when a drain has ended."""
        assert not self._started, "a server runs once"
        self._started = True
        try:
            with self._serving:
                async with trio.open_nursery() as connections:
                    with self._accepting:
                        task_status.started(listeners)
                        patient = [_PatientListener(listener, self._accept_failed) for listener in listeners]
                        await trio.serve_listeners(self._serve, patient, handler_nursery=connections)
        finally:
            self._ended.set()

    def start_drain(self, drain_seconds: float) -> None:
        """Stop accepting, close idle connections, and after `drain_seconds` all others.

        A later call can only shorten that deadline.
        """
        self._serving.deadline = min(self._serving.deadline, trio.current_time() + drain_seconds)
        if not self._draining:
            self._draining = True
            self._accepting.cancel()
            for connection in self._connections:
                connection.close_if_idle()

    async def drain(self, drain_seconds: float) -> None:
        """Call `start_drain`, then wait until nothing is left; return immediately if `run` was never
        called."""
        self.start_drain(drain_seconds)
        if self._started:
            await self._ended.wait()

    def is_draining(self) -> bool:
        return self._draining

    def statistics(self) -> ServerStatistics:
        return self._tally.snapshot()

    def _accept_failed(self, error: OSError) -> None:
        """Report once an episode: accept may fail ten times a second for hours."""
        self._tally.accept_failures += 1
        now = trio.current_time()
        if now - self._accept_failed_at > _EPISODE_SECONDS:
            self._on_error(error, "accept")
        self._accept_failed_at = now

    async def _serve(self, stream: trio.abc.HalfCloseableStream) -> None:
        """Serve one connection. Raises only Cancelled; `serve_listeners` closes the stream."""
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
            await refuse_connection(stream, self._limits, self._service.server_name)
        finally:
            self._refusing -= 1


class _PatientListener(trio.abc.Listener[_StreamT], Generic[_StreamT]):
    """Retries when accept fails, as it does without descriptors or when a client was reset meanwhile.

    trio's own retry logs a traceback each time, ten a second.
    """

    def __init__(self, listener: trio.abc.Listener[_StreamT], on_failure: Callable[[OSError], None]) -> None:
        self._listener = listener
        self._on_failure = on_failure

    async def accept(self) -> _StreamT:
        while True:
            try:
                return await self._listener.accept()
            except OSError as error:
                self._on_failure(error)
                await trio.sleep(_ACCEPT_RETRY_SECONDS)

    async def aclose(self) -> None:
        await self._listener.aclose()
