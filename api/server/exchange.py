"""One request and its response: the application's `receive` and `send`, and the one way to cancel it.

While the application runs, a task reads ahead. When the client leaves, is refused, or does not read, the
application's scope is cancelled: trio.Cancelled at its next checkpoint is all that a handler ever sees, and
all that it needs to free what it holds. From the last write of a response on, a departure cancels nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import h11
import trio

from api.server.asgi import Application, Message, OnError, Scope
from api.server.http_scope import has_body, is_chunked, response_of
from api.server.inbound import Inbound
from api.server.outbound import ClientGone, Outbound, WriteStalled
from api.server.refusals import Refusal, Refused, answer
from api.server.request_body import RequestBody


class IncompleteResponse(Exception):
    """The application returned before the response was whole."""


@dataclass(frozen=True, slots=True)
class Service:
    """What every request of a server needs."""

    app: Application
    on_error: OnError
    is_draining: Callable[[], bool]


class Exchange:
    def __init__(
        self,
        service: Service,
        parser: h11.Connection,
        request: h11.Request,
        body: RequestBody,
        inbound: Inbound,
        outbound: Outbound,
    ) -> None:
        self._service = service
        self._parser = parser
        self._request = request
        self._body = body
        self._inbound = inbound
        self._outbound = outbound
        self._app_scope = trio.CancelScope()
        self._cut = False
        """The application's scope is cancelled. (The scope itself would ask the clock to tell.)"""
        self._response: h11.Response | None = None
        self._request_id: str | None = None
        self._head_written = False
        self._has_body = True
        self._chunked = False
        self._request_delivered = False
        """The application has had the message that says `more_body: False`."""
        self._last_write = False
        self.complete = False
        """The response left whole."""
        self.client_gone = False
        self.refused: Refused | None = None
        self.failed = False
        """The application raised, or returned early."""

    @property
    def answerable(self) -> bool:
        """No byte of a response has left, so that the server may still answer by itself."""
        return not self._head_written and self._outbound.intact

    @property
    def needs_reset(self) -> bool:
        """Without a reset the client could take the truncated body for a whole one, or holds unread bytes."""
        stalled = self.refused is not None and self.refused.refusal is Refusal.WRITE_TIMEOUT
        close_delimited = self._head_written and self._request.http_version < b"1.1"
        return not self.complete and (stalled or close_delimited)

    async def run(self, scope: Scope) -> None:
        """Runs the application to its end; afterwards the properties tell how it went."""
        self._request_id = scope["request_id"]
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._inbound.pump, self._on_client_end)
            with self._app_scope:
                await self._call_app(scope)
            nursery.cancel_scope.cancel()
        if not (self.complete or self.failed or self._cut):
            self._report(IncompleteResponse("the application returned before its response was complete"))

    async def _call_app(self, scope: Scope) -> None:
        try:
            self._parse_body()
            if self.refused is None:
                await self._service.app(scope, self._receive, self._send)
        except Exception as error:
            self._report(error)
        except BaseExceptionGroup as group:
            # A nursery of the application's where something failed while it was being cancelled.
            errors, rest = group.split(Exception)
            if errors is not None:
                self._report(errors)
            if rest is not None:
                raise rest from None

    def _report(self, error: Exception) -> None:
        if not _only_says_that_the_client_left(error):
            self.failed = True
            request = f"{self._request.method.decode('ascii')} {self._request.target.decode('ascii')}"
            self._service.on_error(error, f"{request} ({self._request_id})")

    # ---- what ends the application early

    def _on_client_end(self) -> None:
        if not self._last_write:
            self.client_gone = True
            self._cancel_app()

    def _refuse(self, refused: Refused) -> None:
        if self.refused is None:
            self.refused = refused
        self._cancel_app()

    def _cancel_app(self) -> None:
        self._cut = True
        self._app_scope.cancel()

    async def _raise_cancelled(self) -> None:
        """Raises trio.Cancelled, or, in a part of the application that is shielded from it, returns."""
        await trio.lowlevel.checkpoint()

    # ---- receive

    async def _receive(self) -> Message:
        if self._parser.they_are_waiting_for_100_continue:
            await self._write(self._parser.send(h11.InformationalResponse(status_code=100, headers=[])))
        # Not `_last_write`: a watcher inside the application that hears of a disconnect cancels what it
        # watches, which must not happen in the middle of that write.
        while not (self.complete or self._cut):
            try:
                if self._body.arrived and self._request_delivered:
                    await self._inbound.wait_arrival()
                    continue
                self._body.parse_arrived()
                if self._body.has_parts or self._body.arrived:
                    self._request_delivered = self._body.arrived
                    more = not self._body.arrived
                    return {"type": "http.request", "body": self._body.take_parts(), "more_body": more}
                await self._body.wait_more()
            except Refused as refused:
                self._refuse(refused)
        if self._cut:
            await self._raise_cancelled()
        return {"type": "http.disconnect"}

    def _parse_body(self) -> None:
        try:
            self._body.parse_arrived()
        except Refused as refused:
            self._refuse(refused)

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
        """Writes nothing: the head leaves with the first of the body, in one packet, as ASGI asks."""
        if self._response is not None:
            raise RuntimeError("the response was started before")
        # A body that is not here when its answer starts is not waited for, so the connection cannot go on.
        self._parse_body()
        close = self._service.is_draining() or not self._body.arrived
        response = response_of(message["status"], message.get("headers", ()), close=close)
        self._has_body = has_body(self._request, response)
        self._chunked = is_chunked(self._request, response)
        self._response = response

    async def _send_body(self, body: bytes, more: bool) -> None:
        if self._response is None:
            raise RuntimeError("the response was not started")
        if self._last_write:
            raise RuntimeError("the response was complete")
        if self._cut:
            await self._raise_cancelled()
            raise ClientGone("the client has left or is being cut")
        data = b"" if self._head_written else self._parser.send(self._response)
        if body and self._has_body:
            # By hand 0.1 us, by h11's Data event 2.6; chunks need no state, so h11 misses nothing.
            data += (
                b"%x\r\n%b\r\n" % (len(body), body)
                if self._chunked
                else self._parser.send(h11.Data(data=body))
            )
        if not more:
            data += self._parser.send(h11.EndOfMessage())
            self._last_write = True
        self._head_written = True
        await self._write(data)
        if not more:
            self.complete = True
            self._inbound.wake()

    async def _write(self, data: bytes) -> None:
        try:
            await self._outbound.write(data)
        except ClientGone as error:
            if isinstance(error, WriteStalled):
                self._refuse(Refused(Refusal.WRITE_TIMEOUT))
            self.client_gone = True
            self._cancel_app()
            await self._raise_cancelled()
            raise

    def answer(self, refused: Refused) -> bytes:
        return answer(refused, with_body=self._request.method != b"HEAD", request_id=self._request_id)


def _only_says_that_the_client_left(error: BaseException) -> bool:
    if isinstance(error, BaseExceptionGroup):
        return all(map(_only_says_that_the_client_left, error.exceptions))
    return isinstance(error, ClientGone)
