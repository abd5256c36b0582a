"""One request and its response: the application's `receive` and `send`, and the one way to cancel it.

A task reads ahead while the application runs. When the client leaves, is refused, or does not read, the
application's scope is cancelled: a handler sees only trio.Cancelled at its next checkpoint, and needs nothing
else to free its resources. From the last write of a response on, a disconnect cancels nothing.

A `Phase` is the response's progress, which only grows.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from enum import IntEnum, auto
from typing import TypeAlias

import h11
import trio
from starlette.types import ASGIApp, Message, Scope

from api.http.beginnings import Beginnings, Endings, Turn
from api.http.http_scope import ResponseHead, response_head
from api.http.inbound import Inbound
from api.http.outbound import ClientGone, Outbound, WriteStalled
from api.http.refusals import Refusal, RefusedByServer
from api.http.request_body import RequestBody

OnError: TypeAlias = Callable[[BaseException, str], None]
"""Called with the exception and the request it belongs to. It must not raise: no caller would catch it."""
_COPIED_BYTES = 1 << 16
"""Larger parts of a body are written from where they are."""


class Phase(IntEnum):
    """The response's progress."""

    WAITING = auto()
    """The application has not started the response."""
    STARTED = auto()
    """Status and headers are known but not sent: the head is sent with the first part of the body."""
    STREAMING = auto()
    """The head and a part of the body are written, or being written."""
    FINISHING = auto()
    """The last write is in progress. A client that leaves now cancels nothing."""
    COMPLETE = auto()
    """The whole response was sent."""


@dataclass(slots=True)
class Service:
    """What every request of a server needs."""

    app: ASGIApp
    on_error: OnError
    server_name: str | None = None
    """The `server` header of every response; None sends none."""
    always_answered: Collection[str] = ()
    """Paths that are also answered to clients over the limit of connections."""
    account_of: Callable[[Scope], str] = lambda scope: ""
    """Returns the account that is charged for a body when the application begins to read it."""
    beginnings: Beginnings = field(default_factory=Beginnings)
    endings: Endings = field(default_factory=Endings)
    draining: bool = False
    """Whether no request is begun any more on a connection that has had one."""
    retiring: bool = False
    """Whether responses ask the client to close, though further requests on their connection are served."""


@contextmanager
def reporting(report: Callable[[Exception], None]) -> Iterator[None]:
    """Give `report` what fails within the block, also where a nursery has it in one group with what is no
    error, which goes on alone: Cancelled, SystemExit."""
    try:
        yield
    except Exception as error:
        report(error)
    except BaseExceptionGroup as group:
        errors, rest = group.split(Exception)
        if errors is not None:
            report(errors)
        if rest is not None:
            raise rest from None


class Exchange:
    """One request, from its parsed head to the end of its response: `run` it once, then read its outcome.

    It owns the application's cancel scope. The connection owns the parser, the body and both directions of
    the stream, and decides what follows: the next request, the server's own answer, a reset, or the end.
    """

    def __init__(
        self,
        service: Service,
        parser: h11.Connection,
        request: h11.Request,
        scope: Scope,
        body: RequestBody,
        inbound: Inbound,
        outbound: Outbound,
        turn: Turn,
        *,
        is_last: bool = False,
    ) -> None:
        """`is_last`: the response announces that the connection closes after it."""
        self._is_last = is_last
        self._turn = turn
        self._service = service
        self._parser = parser
        self._request = request
        self._body = body
        self._inbound = inbound
        self._outbound = outbound
        self._app_scope = trio.CancelScope()
        # The application notes in it who asks, whom the charge names.
        self._scope = scope
        scope.update(
            has_room=body.charge.has_room,
            wait_for_room=self._wait_for_room,
            charge_body=body.charge.grow,
            release_body=body.charge.release,
        )
        self._head: ResponseHead | None = None
        self._phase = Phase.WAITING
        self.client_gone = False
        """Whether the client left before the response was complete."""
        self.refused: RefusedByServer | None = None
        """The first refusal of the request or its client, or the application's failure."""

    @property
    def complete(self) -> bool:
        """Return whether the whole response was sent."""
        return self._phase is Phase.COMPLETE

    @property
    def answerable(self) -> bool:
        """Return whether the server can still answer by itself: no byte of a response was sent, and the
        client is connected."""
        return not self._head_written and self._outbound.intact and not self._inbound.ended

    @property
    def needs_reset(self) -> bool:
        """Return whether the connection must be reset: after an orderly close a truncated body could look
        complete, or the kernel would keep the unread bytes of a client that stalls."""
        stalled = self.refused is not None and self.refused.refusal is Refusal.WRITE_TIMEOUT
        close_delimited = self._head_written and self._request.http_version < b"1.1"
        return not self.complete and (stalled or close_delimited)

    @property
    def _head_written(self) -> bool:
        return self._phase > Phase.STARTED

    @property
    def _cancelled(self) -> bool:
        """Return whether the application's scope is cancelled. (Reading the scope's own property reads the
        clock each time.)"""
        return self.client_gone or self.refused is not None

    async def run(self) -> None:
        """Run the application to its end. Then the properties describe the outcome."""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._inbound.pump, self._on_client_end)
            with self._app_scope, reporting(self._report):
                await self._call_app()
            nursery.cancel_scope.cancel()
        if not (self.complete or self._cancelled):
            self._report(RuntimeError("the application returned before its response was complete"))

    async def _call_app(self) -> None:
        with self._refusing():
            self._body.parse_arrived()
        if self.refused is None:
            if self._scope["path"] in self._service.always_answered:
                self._turn.skip()
            await self._turn.take()
            await self._service.app(self._scope, self._receive, self._send)

    def _report(self, error: Exception) -> None:
        if not _is_client_gone(error):
            self.refused = self.refused or RefusedByServer(Refusal.INTERNAL_ERROR)
            request = f"{self._request.method.decode('ascii')} {self._request.target.decode('ascii')}"
            self._service.on_error(error, f"{request} ({self._scope['request_id']})")

    # ---- what ends the application early

    async def _on_client_end(self) -> None:
        if self._needs_client:
            await self._service.endings.wait()
        if self._needs_client:
            self._lose_client()

    @property
    def _needs_client(self) -> bool:
        return self._phase < Phase.FINISHING

    def _lose_client(self) -> None:
        self.client_gone = True
        self._app_scope.cancel()

    @contextmanager
    def _refusing(self) -> Iterator[None]:
        """Cancel the application if the request is refused within the block."""
        try:
            yield
        except RefusedByServer as refused:
            self.refused = self.refused or refused
            self._app_scope.cancel()

    async def _raise_cancelled(self) -> None:
        """Raise trio.Cancelled, or return in a part of the application that is shielded from it."""
        await trio.lowlevel.checkpoint()

    # ---- receive

    async def _receive(self) -> Message:
        # Before the client is asked to send the body.
        with self._refusing():
            await self._body.make_room()
        if self._parser.they_are_waiting_for_100_continue:
            await self._write(self._parser.send(h11.InformationalResponse(status_code=100, headers=[])))
        # Also in FINISHING: a watcher in the application that receives a disconnect cancels what it watches,
        # which must not happen during the last write.
        while not (self.complete or self._cancelled):
            with self._refusing():
                if self._body.delivered:
                    await self._inbound.wait_arrival()
                    continue
                await self._body.make_room()
                self._body.parse_arrived()
                if self._body.has_parts or self._body.arrived:
                    if self._body.arrived:
                        # What is made of a whole body is a part of the beginning.
                        await self._turn.take()
                    body = self._body.take_parts()
                    return {"type": "http.request", "body": body, "more_body": not self._body.arrived}
                await self._body.wait_more()
                self._turn.lose()
        if self._cancelled:
            await self._raise_cancelled()
        return {"type": "http.disconnect"}

    async def _wait_for_room(self) -> None:
        with self._refusing():
            await self._body.charge.wait_room()
        if self._cancelled:
            await self._raise_cancelled()

    # ---- send

    async def _send(self, message: Message) -> None:
        kind = message["type"]
        if kind == "http.response.body":
            await self._send_body(message.get("body", b""), message.get("more_body", False))
        elif kind == "http.response.start":
            self._start_response(message)
        else:
            raise RuntimeError(f"a server of HTTP cannot send {kind!r}")

    def _start_response(self, message: Message) -> None:
        """Write nothing yet: the head is sent with the first part of the body, in one packet, as ASGI
        requires."""
        if self._phase is not Phase.WAITING:
            raise RuntimeError("the response has been started")
        # The server does not wait for the rest of a body once its answer starts, so the connection must
        # close.
        with self._refusing():
            self._body.parse_arrived()
        self._head = response_head(
            self._request,
            message["status"],
            message.get("headers", ()),
            close=self._is_last or self._service.draining or self._service.retiring or not self._body.arrived,
            server_name=self._service.server_name,
        )
        self._phase = Phase.STARTED

    async def _send_body(self, body: bytes, more: bool) -> None:
        if self._head is None or self._phase >= Phase.FINISHING:
            raise RuntimeError("there is no response to which a part of a body belongs")
        if self._cancelled:
            await self._raise_cancelled()
            raise ClientGone("the client has left or is refused")
        before, behind = b"" if self._head_written else self._parser.send(self._head.response), b""
        if not (body and self._head.has_body):
            body = b""
        elif self._head.is_chunked:
            # 0.1 us by hand, 2.6 by h11's Data event; chunks need no state, so h11 misses nothing.
            before, behind = before + b"%x\r\n" % len(body), b"\r\n"
        else:
            body = self._parser.send(h11.Data(data=body))
        if not more:
            behind += self._parser.send(h11.EndOfMessage())
        self._phase = Phase.STREAMING if more else Phase.FINISHING
        if len(body) > _COPIED_BYTES:
            await self._write(before)
            await self._write(body)
            await self._write(behind)
        else:
            await self._write(before + body + behind)
        if not more:
            self._phase = Phase.COMPLETE
            self._inbound.wake()

    async def _write(self, data: bytes) -> None:
        try:
            await self._outbound.write(data)
        except ClientGone as error:
            if isinstance(error, WriteStalled):
                self.refused = self.refused or RefusedByServer(Refusal.WRITE_TIMEOUT)
            self._lose_client()
            await self._raise_cancelled()
            raise


def _is_client_gone(error: BaseException) -> bool:
    if isinstance(error, BaseExceptionGroup):
        return all(map(_is_client_gone, error.exceptions))
    return isinstance(error, ClientGone)
