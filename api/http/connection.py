"""One client's connection: requests in sequence until one side ends it, then the appropriate close.

It works on any half-closeable stream. The caller of `serve` closes the stream forcefully afterwards, also
after cancellation.
"""

from __future__ import annotations

from functools import partial

import h11
import trio

from api.http.beginnings import Turn
from api.http.body_budget import BodyBudget, BodyCharge
from api.http.exchange import Exchange, Service
from api.http.http_scope import addresses, scope_of
from api.http.inbound import Inbound
from api.http.limits import Limits
from api.http.outbound import ClientGone, Outbound
from api.http.refusals import Refusal, RefusedByServer, answer
from api.http.request_body import RequestBody
from api.http.request_id import request_id_of
from api.http.statistics import ServerStatistics

_METHODS_OF_PROBES = (b"GET ", b"HEAD ")


class Connection:
    """Reads request heads in sequence and runs an `Exchange` for each, until an error, the client, a timeout
    or a drain ends it. It owns the parser, both directions of the stream and its counts in the tally."""

    def __init__(
        self,
        stream: trio.abc.HalfCloseableStream,
        service: Service,
        limits: Limits,
        tally: ServerStatistics,
        budget: BodyBudget,
    ) -> None:
        self._service = service
        self._limits = limits
        self._tally = tally
        self._budget = budget
        self._inbound = Inbound(stream, limits.read_ahead_bytes)
        self._outbound = Outbound(stream, limits.write_seconds, limits.write_piece_bytes)
        self._parser = h11.Connection(h11.SERVER, max_incomplete_event_size=limits.header_bytes)
        self._client, self._server = addresses(stream)
        self._idle: trio.CancelScope | None = None
        """Entered only while no byte of a request has arrived."""
        self._is_first_request = True
        self._turn = Turn(service.beginnings)
        """That of the request that is read."""

    def close_if_idle(self) -> None:
        """Close an idle connection for a drain. A connection with a request ends by itself after that
        request."""
        if self._idle is not None:
            self._idle.cancel()

    async def serve(self) -> None:
        """Serve until the connection is over. An exception here is a bug of the server."""
        try:
            while (request := await self._next_request()) is not None and await self._exchange(request):
                self._parser.start_next_cycle()
                self._is_first_request = False
        except RefusedByServer as refused:
            self._tally.refusals_total[refused.refusal] += 1
            await self._say_goodbye(refused)

    async def refuse(self) -> None:
        """Answer 503 to a connection over the limit, unless it asks for a path that is always answered.

        A client that sends no request in time gets the same 503. A request that comes in time is read before
        the answer: a close with unread bytes would reset the connection, and a reset can overtake the answer.
        """
        request: h11.Request | None = None
        try:
            request = await self._next_request(refused=True)
            if request is None and self._inbound.ended:
                return
            if request is not None and self._is_always_answered(request):
                if await self._exchange(request, is_last=True):
                    await self._linger()
                return
            raise self._crowded()
        except RefusedByServer as refused:
            if refused.refusal is Refusal.HEADER_TIMEOUT:
                refused = self._crowded()
            self._tally.refusals_total[refused.refusal] += 1
            own_id = None if request is None else request_id_of(request.headers)
            await self._say_goodbye(refused, request, own_id)

    def _crowded(self) -> RefusedByServer:
        seconds = self._limits.retry_after_seconds
        return RefusedByServer(Refusal.TOO_MANY_CONNECTIONS, retry_after_seconds=seconds)

    def _is_always_answered(self, request: h11.Request) -> bool:
        path = scope_of(request, None, None)["path"]
        return request.method in (b"GET", b"HEAD") and path in self._service.always_answered

    # ---- the request's head

    async def _next_request(self, *, refused: bool = False) -> h11.Request | None:
        """Return the next request, or None if the client left or the idle timeout expired. Raise
        RefusedByServer. `refused`: it does not begin."""
        if not self._has_bytes() and not await self._wait_first_bytes():
            return None
        # A probe is recognized by its head, which must be read for that.
        if not self._parser.trailing_data[0]:
            self._parser.receive_data(await self._inbound.read(self._limits.header_bytes))
        self._turn = Turn(self._service.beginnings)
        if not refused and not self._parser.trailing_data[0].startswith(_METHODS_OF_PROBES):
            await self._turn.take()
        with trio.move_on_after(self._limits.header_seconds):
            request = await self._read_head()
            if request is not None:
                _check_head(request, self._limits.body_bytes)
            return request
        raise RefusedByServer(Refusal.HEADER_TIMEOUT)

    def _has_bytes(self) -> bool:
        return self._inbound.has_read_ahead or bool(self._parser.trailing_data[0])

    async def _wait_first_bytes(self) -> bool:
        if self._service.draining:
            return False
        # A new connection must send a request soon; only after one does it get the longer keep-alive timeout.
        seconds = self._limits.header_seconds if self._is_first_request else self._limits.keep_alive_seconds
        data = b""
        with trio.move_on_after(seconds) as self._idle:
            data = await self._inbound.read(self._limits.header_bytes)
        self._idle = None
        if data:
            self._parser.receive_data(data)
        return bool(data)

    async def _read_head(self) -> h11.Request | None:
        try:
            while (event := self._parser.next_event()) is h11.NEED_DATA:
                # The parser checks its bound only when it needs more bytes, and would let a whole head pass.
                room = self._limits.header_bytes - len(self._parser.trailing_data[0])
                if room <= 0:
                    raise RefusedByServer(Refusal.HEADERS_TOO_LARGE)
                data = await self._inbound.read(room)
                self._turn.lose()
                if not data:
                    return None
                self._parser.receive_data(data)
        except h11.RemoteProtocolError as error:
            too_large = error.error_status_hint == 431
            refusal = Refusal.HEADERS_TOO_LARGE if too_large else Refusal.MALFORMED
            raise RefusedByServer(refusal, error.error_status_hint) from error
        assert isinstance(event, h11.Request), event
        return event

    # ---- the exchange

    async def _exchange(self, request: h11.Request, *, is_last: bool = False) -> bool:
        """Return whether another request may follow on this connection."""
        scope = scope_of(request, self._client, self._server)
        account_of = partial(self._service.account_of, scope)
        charge = BodyCharge(self._budget, _declared_bytes(request), account_of)
        body = RequestBody(self._parser, self._inbound, self._limits, charge)
        exchange = Exchange(
            self._service,
            self._parser,
            request,
            scope,
            body,
            self._inbound,
            self._outbound,
            self._turn,
            is_last=is_last,
        )
        self._tally.requests_total += 1
        self._tally.active_requests += 1
        try:
            await exchange.run()
        finally:
            self._tally.active_requests -= 1
            charge.release()
            if exchange.refused is not None:
                self._tally.refusals_total[exchange.refused.refusal] += 1
            elif exchange.client_gone:
                self._tally.disconnects_total += 1
        if exchange.complete:
            return await self._may_go_on()
        if exchange.needs_reset:
            await self._outbound.abort()
        elif exchange.answerable and exchange.refused is not None:
            await self._say_goodbye(exchange.refused, request, scope["request_id"])
        # Otherwise nothing: the missing end tells the client that the response is truncated.
        return False

    async def _may_go_on(self) -> bool:
        if self._inbound.ended:
            return False
        both_done = self._parser.our_state is h11.DONE and self._parser.their_state is h11.DONE
        if both_done and not self._service.draining:
            return True
        if self._parser.their_state is h11.SEND_BODY or self._has_bytes():
            await self._linger()
        return False

    # ---- the end

    async def _say_goodbye(
        self, refused: RefusedByServer, request: h11.Request | None = None, request_id: str | None = None
    ) -> None:
        """Answer in the application's place, and end the connection."""
        response = answer(
            refused,
            server_name=self._service.server_name,
            with_body=request is None or request.method != b"HEAD",
            request_id=request_id,
        )
        try:
            await self._outbound.write(response)
        except ClientGone:
            return
        await self._linger()

    async def _linger(self) -> None:
        """Close the sending side, and drop what the client still sends until it has read the response."""
        await self._outbound.end()
        with trio.move_on_after(self._limits.linger_seconds):
            await self._inbound.discard()


def _declared_bytes(request: h11.Request) -> int | None:
    for name, value in request.headers:
        if name == b"content-length":
            return int(value)
    return None


def _check_head(request: h11.Request, body_bytes: int) -> None:
    """Refuse what h11 accepts and this server does not support."""
    if not request.http_version.startswith(b"1."):
        raise RefusedByServer(Refusal.UNSUPPORTED, 505)
    if request.method == b"CONNECT" or not (request.target[:1] in (b"/", b"*") or b"://" in request.target):
        # A success of CONNECT would turn the connection into a tunnel.
        raise RefusedByServer(Refusal.UNSUPPORTED)
    length = _declared_bytes(request)
    is_chunked = any(name == b"transfer-encoding" for name, _ in request.headers)
    if length is not None and is_chunked:
        # A proxy in front that honours the other header would see a different request (request smuggling).
        raise RefusedByServer(Refusal.MALFORMED)
    if length is not None and length > body_bytes:
        raise RefusedByServer(Refusal.BODY_TOO_LARGE)
