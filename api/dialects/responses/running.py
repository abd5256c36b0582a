"""Responses that are being made, which other requests may cancel: streams, and those in the background."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import structlog
import trio
from starlette.types import Message, Receive, Scope, Send

from api.answers.errors import INTERNAL
from api.answers.event_stream import EventStream
from api.answers.whole_answer import MAX_HELD_BYTES
from api.bodies.body import charge_body
from api.dialects.responses.encode import ResponseCancelled, ResponseEncoder
from api.dialects.responses.event_log import EventLog
from scheduler.errors import TenantLimit, Unavailable
from scheduler.events import Failed, StreamEvent
from scheduler.request import GenerationRequest
from scheduler.service import RequestStream, Scheduler

_log = structlog.get_logger("responses")

MAX_BACKGROUND = 64
"""Responses of one tenant that wait or are made in the background: their clients hold no connections, and
what their bodies are charged ends with the requests that began them."""


class RunningResponses:
    """The running streams, by tenant. `run` owns those in the background."""

    def __init__(self) -> None:
        self._running: dict[tuple[str, str], StoppableStream] = {}
        self._nursery: trio.Nursery | None = None
        self._in_background: Counter[str] = Counter()
        self._background_bytes: Counter[str] = Counter()
        self.logged_bytes: Counter[str] = Counter()
        """The size of the event logs that grow, by tenant."""

    async def run(self, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Run until cancelled. Before that, requests have ended (`Scheduler.end_all`), and with them all
        that is here."""
        async with trio.open_nursery() as self._nursery:
            task_status.started()
            await trio.sleep_forever()

    async def begin(self, stream: StoppableStream, keep: Callable[[], None], held_bytes: int) -> None:
        """Make a response in the background. Return when it is accepted; raise what refuses it. `keep` is
        called when it is over. `held_bytes`: the most that its answer and its body take until then."""
        if self._nursery is None:
            raise Unavailable("the server does not make responses in the background yet")
        tenant = stream.tenant
        others, held = self._in_background[tenant], self._background_bytes[tenant]
        if others >= MAX_BACKGROUND or (others and held + held_bytes > MAX_HELD_BYTES):
            why = f"{others} responses of this tenant, of up to {held >> 20} MiB, are in the background"
            raise TenantLimit(why, retry_after_seconds=10.0)

        async def counted(task_status: trio.TaskStatus[None]) -> None:
            self._in_background[tenant] += 1
            self._background_bytes[tenant] += held_bytes
            try:
                await stream.run_alone(keep, task_status)
            finally:
                self._in_background[tenant] -= 1
                self._background_bytes[tenant] -= held_bytes

        await self._nursery.start(counted)

    @contextmanager
    def entered(self, tenant: str, response_id: str, stream: StoppableStream) -> Iterator[None]:
        self._running[tenant, response_id] = stream
        try:
            yield
        finally:
            del self._running[tenant, response_id]

    def get(self, tenant: str, response_id: str) -> StoppableStream | None:
        return self._running.get((tenant, response_id))


class StoppableStream(EventStream):
    def __init__(
        self,
        scheduler: Scheduler,
        requests: list[GenerationRequest],
        encoder: ResponseEncoder,
        keep_alive_seconds: float,
        running: RunningResponses,
        log: EventLog | None = None,
        kept_bytes: int = 0,
    ) -> None:
        """`log`: gets the events of a response that is made without a client."""
        super().__init__(scheduler, requests, encoder, keep_alive_seconds, kept_bytes=kept_bytes)
        self._responses = encoder
        self._running = running
        self.log = log
        self.tenant = requests[0].tenant
        self._key = (self.tenant, requests[0].public_id)
        self._scope: Scope = {}
        self._charged_bytes = 0
        self._stopped = False
        self._waiting = trio.CancelScope()
        self._over = trio.Event()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        self._scope = scope
        try:
            with self._running.entered(*self._key, self):
                await super().__call__(scope, receive, send)
        finally:
            self._over.set()

    async def run_alone(self, keep: Callable[[], None], task_status: trio.TaskStatus[None]) -> None:
        """Make the response without a client, who finds it in the store. `keep` is called when it is over."""
        accepted = False

        async def send(message: Message) -> None:
            nonlocal accepted
            if message["type"] == "http.response.start":
                accepted = True
                task_status.started()
            elif self.log is not None:
                self.log.add(message["body"])
                # A stream's end comes in megabytes, each in a turn of its own.
                await trio.lowlevel.checkpoint()

        try:
            await self({"type": "http"}, _nothing, send)
        except Exception:
            if not accepted:
                raise
            _log.exception("background_response_failed", response=self._key[1])
            last = self._responses.error(INTERNAL)
            if self.log is not None:
                self.log.add(last if isinstance(last, bytes) else b"".join(last))
        finally:
            if self.log is not None:
                self.log.close()
        # Nobody has run since it was in the table of running ones.
        keep()

    def so_far(self) -> dict[str, Any]:
        return self._responses.so_far()

    async def stop(self) -> dict[str, Any]:
        """End the stream, between two events and never within one, and return the response."""
        self._stopped = True
        self._waiting.cancel()
        await self._over.wait()
        return self._responses.response

    async def _next(self, stream: RequestStream) -> tuple[int, StreamEvent]:
        kept = self._responses.kept_bytes
        charge_body(self._scope, kept - self._charged_bytes)
        self._charged_bytes = kept
        if not self._stopped:
            # Outside the scope: a cancel at the checkpoint would lose the event that was just taken.
            if (found := stream.take_choice_nowait()) is not None:
                await trio.lowlevel.checkpoint()
                return found
            with trio.CancelScope() as self._waiting:
                return await super()._next(stream)
        return 0, Failed(ResponseCancelled("the response was cancelled"))


async def _nothing() -> Message:
    await trio.sleep_forever()
    raise AssertionError
