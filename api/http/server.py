"""The server: listeners, one task for each connection, and the drain that ends them."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Sequence
from typing import NoReturn, TypeVar, assert_never

import trio

from api.http.asgi import Application, OnError, Scope
from api.http.body_budget import BodyBudget, nothing
from api.http.connection import Connection
from api.http.exchange import Service
from api.http.limits import Limits, refusal_limits
from api.http.places import PlaceKind, Places
from api.http.statistics import ServerStatistics

_StreamT = TypeVar("_StreamT", bound=trio.abc.HalfCloseableStream)
_ACCEPT_RETRY_SECONDS = 0.1
_EPISODE_SECONDS = 10.0
"""Failures of accept within this time of each other are reported once."""


class Server:
    """Serves one application once: `run` it, and end it by a drain, by retiring or by cancelling `run`.

    `on_error` gets every exception of the application and of the server itself; none of them reaches another
    connection. `server_name` is the `server` header of responses. `always_answered` are
    paths, of probes, that are answered to clients over the limit of connections, too. `account_of` returns
    the account that a body is charged to; it is asked when the application begins to read it. `on_freed` is
    called when a large body is not held any longer: an application makes something of one when `has_room` of
    the scope says so, or after `wait_for_room`, says with `charge_body` how many bytes that is, and calls
    `release_body` when it has dropped all of it but the bytes that it names, which are released at the end of
    the response.
    """

    def __init__(
        self,
        app: Application,
        limits: Limits | None = None,
        *,
        on_error: OnError,
        server_name: str | None = None,
        always_answered: Collection[str] = (),
        account_of: Callable[[Scope], str] = lambda scope: "",
        on_freed: Callable[[], None] = nothing,
    ) -> None:
        self._limits = limits or Limits()
        self._on_error = on_error
        self._service = Service(
            app,
            on_error,
            self.is_draining,
            server_name,
            frozenset(always_answered),
            self.is_retiring,
            account_of,
        )
        self._budget = BodyBudget(self._limits, on_freed)
        self._tally = ServerStatistics()
        self._connections: set[Connection] = set()
        self._places = Places(self._limits.connections, self._limits.refusals)
        self._accepting = trio.CancelScope()
        self._serving = trio.CancelScope()
        self._draining = False
        self._retiring = False
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
                        async with trio.open_nursery() as acceptors:
                            for listener in listeners:
                                acceptors.start_soon(self._accept_from, listener, connections)
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

    def retire(self) -> None:
        """Stop accepting, because another process will accept from the same socket; `run` returns when the
        last connection has ended.

        No client loses a request: an open connection, idle or not, is served until a response has asked its
        client to close it, or until it was idle for `keep_alive_seconds`.
        """
        self._retiring = True
        self._accepting.cancel()

    async def wait_ended(self) -> None:
        """Wait until `run` has returned."""
        await self._ended.wait()

    def is_draining(self) -> bool:
        return self._draining

    def is_retiring(self) -> bool:
        return self._retiring

    def statistics(self) -> ServerStatistics:
        return self._tally.snapshot()

    # ---- accepting

    async def _accept_from(
        self, listener: trio.abc.Listener[_StreamT], connections: trio.Nursery
    ) -> NoReturn:
        """Accept while there are places; without one, clients wait in the listen backlog, not reset."""
        async with listener:
            while True:
                await self._places.wait_free()
                stream = await self._accept(listener)
                # Taken before the next accept, so that the bounds are exact.
                place = self._places.take()
                connections.start_soon(self._occupy, place, stream)

    async def _accept(self, listener: trio.abc.Listener[_StreamT]) -> _StreamT:
        """Accept the next connection. After a failure, such as for lack of descriptors, wait for a connection
        to end, or a moment: accept fails at once, so an immediate retry would be a busy loop."""
        while True:
            try:
                return await listener.accept()
            except OSError as error:
                self._accept_failed(error)
                with trio.move_on_after(_ACCEPT_RETRY_SECONDS):
                    await self._places.wait_end()

    def _accept_failed(self, error: OSError) -> None:
        """Report once an episode: accept may fail ten times a second for hours."""
        self._tally.accept_failures_total += 1
        now = trio.current_time()
        if now - self._accept_failed_at > _EPISODE_SECONDS:
            self._on_error(error, "accept")
        self._accept_failed_at = now

    # ---- serving

    async def _occupy(self, place: PlaceKind, stream: trio.abc.HalfCloseableStream) -> None:
        try:
            await self._serve(place, stream)
        finally:
            try:
                await trio.aclose_forcefully(stream)
            finally:
                # After the close: the next to be accepted needs the descriptor too.
                self._places.give_back(place)

    async def _serve(self, place: PlaceKind, stream: trio.abc.HalfCloseableStream) -> None:
        """Serve one connection. Raise only Cancelled; the caller closes the stream."""
        try:
            match place:
                case PlaceKind.SERVED:
                    await self._serve_connection(stream)
                case PlaceKind.REFUSED:
                    await self._refuse_connection(stream)
                case _:
                    assert_never(place)
        except Exception as error:
            self._on_error(error, "connection")
        except BaseExceptionGroup as group:
            errors, rest = group.split(Exception)
            if errors is not None:
                self._on_error(errors, "connection")
            if rest is not None:
                raise rest from None

    async def _serve_connection(self, stream: trio.abc.HalfCloseableStream) -> None:
        connection = Connection(stream, self._service, self._limits, self._tally, self._budget)
        self._connections.add(connection)
        self._tally.open_connections += 1
        try:
            await connection.serve()
        finally:
            self._tally.open_connections -= 1
            self._connections.discard(connection)

    async def _refuse_connection(self, stream: trio.abc.HalfCloseableStream) -> None:
        limits = refusal_limits(self._limits, self._places.refused)
        await Connection(stream, self._service, limits, self._tally, self._budget).refuse()
