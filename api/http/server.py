"""The server: listeners, one task for each connection, and the drain that ends them.

Some connections are served, some more are refused, and the rest wait in the listen backlog, not reset.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import NoReturn, TypeVar

import trio

from api.http.body_budget import BodyBudget
from api.http.connection import Connection
from api.http.exchange import Service, reporting
from api.http.limits import Limits, refusal_limits
from api.http.statistics import ServerStatistics

_StreamT = TypeVar("_StreamT", bound=trio.abc.HalfCloseableStream)
_ACCEPT_RETRY_SECONDS = 0.1
_EPISODE_SECONDS = 10.0
"""Failures of accept within this time of each other are reported once."""


class Server:
    """Serves one application once: `run` it, and end it by a drain, by retiring or by cancelling `run`.

    Exceptions of the application and of the server itself reach no other connection. `on_freed` is called
    when a large body is not held any longer: an application makes something of one when `has_room` of
    the scope says so, or after `wait_for_room`, says with `charge_body` how many bytes that is, and calls
    `release_body` when it has dropped all of it but the bytes that it names, which are released at the end of
    the response.
    """

    def __init__(
        self, service: Service, limits: Limits | None = None, on_freed: Callable[[], None] = lambda: None
    ) -> None:
        self._service = service
        self._limits = limits or Limits()
        self._budget = BodyBudget(self._limits, on_freed)
        self._tally = ServerStatistics()
        self._connections: set[Connection] = set()
        self._refusing = 0
        self._connection_ended = trio.lowlevel.ParkingLot()
        self._accepting = trio.CancelScope()
        self._serving = trio.CancelScope()
        self._started = False
        self._ended = trio.Event()
        self._accept_failed_at = -math.inf

    async def run(self, listeners: Sequence[trio.abc.Listener[_StreamT]]) -> None:
        """Own and close the listeners. Return when a drain has ended."""
        assert not self._started, "a server runs once"
        self._started = True
        try:
            with self._serving:
                async with trio.open_nursery() as connections:
                    with self._accepting:
                        async with trio.open_nursery() as acceptors:
                            for listener in listeners:
                                acceptors.start_soon(self._accept_from, listener, connections)
        finally:
            self._ended.set()

    def start_drain(self, drain_seconds: float) -> None:
        """Stop accepting, close idle connections, and after `drain_seconds` all others."""
        self._serving.deadline = trio.current_time() + drain_seconds
        self._service.draining = True
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
        self._service.retiring = True
        self._accepting.cancel()

    async def wait_ended(self) -> None:
        """Wait until `run` has returned."""
        await self._ended.wait()

    def statistics(self) -> ServerStatistics:
        return self._tally.snapshot()

    # ---- accepting

    async def _accept_from(
        self, listener: trio.abc.Listener[_StreamT], connections: trio.Nursery
    ) -> NoReturn:
        """Accept while one more may be served or refused. Several listeners that accept at the same moment
        may each refuse one more."""
        async with listener:
            while True:
                while self._is_full and self._refusing >= self._limits.refusals:
                    await self._connection_ended.park()
                stream = await self._accept(listener)
                # Counted before the next accept, so that the bounds are exact.
                if is_refused := self._is_full:
                    self._refusing += 1
                else:
                    self._tally.open_connections += 1
                connections.start_soon(self._occupy, stream, is_refused)

    @property
    def _is_full(self) -> bool:
        return self._tally.open_connections >= self._limits.connections

    async def _accept(self, listener: trio.abc.Listener[_StreamT]) -> _StreamT:
        """Accept the next connection. After a failure, such as for lack of descriptors, wait for a connection
        to end, or a moment: accept fails at once, so an immediate retry would be a busy loop."""
        while True:
            try:
                return await listener.accept()
            except OSError as error:
                self._accept_failed(error)
                with trio.move_on_after(_ACCEPT_RETRY_SECONDS):
                    await self._connection_ended.park()

    def _accept_failed(self, error: OSError) -> None:
        """Report once an episode: accept may fail ten times a second for hours."""
        self._tally.accept_failures_total += 1
        now = trio.current_time()
        if now - self._accept_failed_at > _EPISODE_SECONDS:
            self._service.on_error(error, "accept")
        self._accept_failed_at = now

    # ---- serving

    async def _occupy(self, stream: trio.abc.HalfCloseableStream, is_refused: bool) -> None:
        try:
            with reporting(lambda error: self._service.on_error(error, "connection")):
                await (self._refuse if is_refused else self._serve)(stream)
        finally:
            try:
                await trio.aclose_forcefully(stream)
            finally:
                # After the close: the next to be accepted needs the descriptor too.
                if is_refused:
                    self._refusing -= 1
                else:
                    self._tally.open_connections -= 1
                self._connection_ended.unpark_all()

    async def _serve(self, stream: trio.abc.HalfCloseableStream) -> None:
        connection = Connection(stream, self._service, self._limits, self._tally, self._budget)
        self._connections.add(connection)
        try:
            await connection.serve()
        finally:
            self._connections.discard(connection)

    async def _refuse(self, stream: trio.abc.HalfCloseableStream) -> None:
        limits = refusal_limits(self._limits, self._refusing)
        await Connection(stream, self._service, limits, self._tally, self._budget).refuse()
