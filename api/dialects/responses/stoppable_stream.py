"""A streamed answer that another request may cancel: `POST /v1/responses/{id}/cancel`."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import trio
from starlette.types import Receive, Scope, Send

from api.answers.event_stream import EventStream
from api.dialects.responses.encode import ResponseCancelled, ResponseEncoder
from scheduler.events import Failed, StreamEvent
from scheduler.request import GenerationRequest
from scheduler.service import RequestStream, Scheduler


class RunningResponses:
    """The running streams, by tenant."""

    def __init__(self) -> None:
        self._running: dict[tuple[str, str], StoppableStream] = {}

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
        request: GenerationRequest,
        encoder: ResponseEncoder,
        keep_alive_seconds: float,
        running: RunningResponses,
    ) -> None:
        super().__init__(scheduler, request, encoder, keep_alive_seconds)
        self._responses = encoder
        self._running = running
        self._key = (request.tenant, request.public_id)
        self._stopped = False
        self._waiting = trio.CancelScope()
        self._over = trio.Event()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            with self._running.entered(*self._key, self):
                await super().__call__(scope, receive, send)
        finally:
            self._over.set()

    async def stop(self) -> dict[str, Any]:
        """End the stream, between two events and never within one, and return the response."""
        self._stopped = True
        self._waiting.cancel()
        await self._over.wait()
        return self._responses.response

    async def _next(self, stream: RequestStream) -> tuple[int, StreamEvent]:
        if not self._stopped:
            # Outside the scope: a cancel at the checkpoint would lose the event that was just taken.
            if (found := stream.take_choice_nowait()) is not None:
                await trio.lowlevel.checkpoint()
                return found
            with trio.CancelScope() as self._waiting:
                return await super()._next(stream)
        return 0, Failed(ResponseCancelled("the response was cancelled"))
