"""One request's body: the parsed parts, and the deadline for the rest."""

from __future__ import annotations

import h11
import trio

from api.http.body_budget import BodyCharge
from api.http.inbound import Inbound
from api.http.limits import Limits
from api.http.refusals import Refusal, RefusedByServer


class RequestBody:
    """One request's body. Each method that parses raises RefusedByServer if it is malformed or too large."""

    def __init__(self, parser: h11.Connection, inbound: Inbound, limits: Limits, charge: BodyCharge) -> None:
        self._parser = parser
        self._inbound = inbound
        self._limits = limits
        self._parts: list[bytes] = []
        self._bytes = 0
        self.charge = charge
        self._left_seconds = limits.body_seconds
        self.arrived = False
        """Whether it is parsed to its end; bytes of the next request are not touched."""
        self.delivered = False
        """Whether the application has taken all of it, including the end."""

    @property
    def has_parts(self) -> bool:
        return bool(self._parts)

    def take_parts(self) -> bytes:
        """Return the parts parsed since the last call."""
        taken = b"".join(self._parts)
        self._parts.clear()
        self.delivered = self.arrived
        return taken

    def parse_arrived(self) -> None:
        """Parse everything that was read ahead, which is bounded, so that the parsed parts are bounded
        too."""
        while not self.arrived:
            try:
                event = self._parser.next_event()
            except h11.RemoteProtocolError as error:
                raise RefusedByServer(Refusal.MALFORMED, error.error_status_hint) from error
            if isinstance(event, h11.Data):
                self._bytes += len(event.data)
                earned = len(event.data) / self._limits.body_bytes_per_second
                self._left_seconds = min(self._limits.body_seconds, self._left_seconds + earned)
                if self._bytes > self._limits.body_bytes:
                    raise RefusedByServer(Refusal.BODY_TOO_LARGE)
                self._parts.append(bytes(event.data))
            elif isinstance(event, h11.EndOfMessage):
                self.arrived = True
            else:
                assert event is h11.NEED_DATA, event
                data = self._inbound.take_nowait()
                if not data:
                    return
                self._parser.receive_data(data)

    async def make_room(self) -> None:
        """Charge for what comes next. Raise RefusedByServer if there is no room for it."""
        ahead = 0 if self.arrived else self._limits.read_ahead_bytes
        await self.charge.cover(min(self._bytes + ahead, self._limits.body_bytes))

    async def wait_more(self) -> None:
        """Return when more may have arrived, the client has left, or `Inbound.wake` was called.

        Only time spent here counts: the client is not responsible for the application's own pauses.
        """
        started = trio.current_time()
        with trio.move_on_after(min(self._left_seconds, self._limits.crowded_body_seconds)):
            await self._inbound.wait_arrival()
        self._left_seconds -= trio.current_time() - started
        if self._left_seconds <= self._least_seconds:
            raise RefusedByServer(Refusal.BODY_TIMEOUT)

    @property
    def _least_seconds(self) -> float:
        if not self.charge.crowded:
            return 0.0
        return max(0.0, self._limits.body_seconds - self._limits.crowded_body_seconds)
