"""A streamed answer: one request's events to one connection, with comments while it waits.

The server cancels this task when the client goes away; leaving `scheduler.stream` then cancels the
request in the engine. That is the whole of cancellation here.
"""

from __future__ import annotations

from collections.abc import Callable

import trio
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from api import sse
from api.errors import from_scheduler
from api.openai.encode import ChunkEncoder
from scheduler.events import Failed, Finished, Prefilling, Queued, StreamEvent, TextDelta
from scheduler.request import GenerationRequest
from scheduler.service import RequestStream, Scheduler


class EventStream(Response):
    """Admission happens when the response is started, so a refusal still gets its own status."""

    def __init__(
        self,
        scheduler: Scheduler,
        request: GenerationRequest,
        make_encoder: Callable[[str], ChunkEncoder],
        keep_alive_seconds: float,
    ) -> None:
        super().__init__(headers=sse.HEADERS)
        # The body's length is not known.
        del self.headers["content-length"]
        self._scheduler = scheduler
        self._request = request
        self._make_encoder = make_encoder
        self._keep_alive_seconds = keep_alive_seconds

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async with self._scheduler.stream(self._request) as stream:
            encoder = self._make_encoder(stream.public_id)
            await send({"type": "http.response.start", "status": 200, "headers": self.raw_headers})
            first = encoder.progress(stream.progress)
            await send({"type": "http.response.body", "body": first, "more_body": True})
            started = False
            while True:
                event = await self._next(stream)
                frame = b""
                if isinstance(event, TextDelta | Finished) and not started:
                    started = True
                    frame = encoder.start()
                frame += _encode(event, encoder)
                more = not isinstance(event, Finished | Failed)
                await send({"type": "http.response.body", "body": frame, "more_body": more})
                if not more:
                    return

    async def _next(self, stream: RequestStream) -> StreamEvent:
        """The next event, or what the request waits for when nothing happens for a while."""
        if (event := stream.take_nowait()) is not None:
            # Without a wait this would be a loop that never lets another task run.
            await trio.lowlevel.checkpoint()
            return event
        with trio.move_on_after(self._keep_alive_seconds):
            return await stream.receive()
        return stream.progress


def _encode(event: StreamEvent, encoder: ChunkEncoder) -> bytes:
    match event:
        case TextDelta(text=text):
            return encoder.text(text)
        case Queued() | Prefilling():
            return encoder.progress(event)
        case Finished():
            return encoder.finish(event)
        case Failed(error=error):
            return encoder.error(from_scheduler(error))
