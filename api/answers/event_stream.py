"""A streamed answer: one request's events to one connection, and what keeps that alive while it waits.

The server cancels this task when the client disconnects. Leaving `scheduler.stream` then cancels the request,
in the queue or in the engine; no other code here cancels.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import replace
from itertools import chain
from typing import Protocol, TypeAlias

import trio
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from api.answers import sse
from api.answers.errors import ApiError, from_scheduler
from api.bodies.body import release_body
from api.bodies.unknown_fields import HEADER, ignore, pointed
from scheduler.events import (
    AnswerPiece,
    Failed,
    Finished,
    Prefilling,
    Progress,
    Queued,
    StreamEvent,
    Usage,
    total_usage,
)
from scheduler.request import GenerationRequest
from scheduler.service import RequestStream, Scheduler

Frame: TypeAlias = bytes | Iterable[bytes | memoryview]
"""What is appended to a body, in parts where it may be megabytes."""
_TURN_BYTES = 1 << 20
"""This much of it is made, copied and sent in one turn of the loop."""


class Encoder(Protocol):
    """Encodes one stream's events in a client's dialect: each call returns what to append to the body.

    The order of calls is `start` once, `event` and `progress` any number of times, and `finish` or `error`
    once, unless the client disconnects.
    """

    def start(self, prompt_tokens: int) -> Frame:
        """The request is accepted; no token is generated yet."""
        ...

    def event(self, choice: int, event: AnswerPiece | Finished) -> Frame:
        """Return a piece of a choice's answer, or that choice's end."""
        ...

    def progress(self, progress: Progress) -> bytes:
        """The request waits, or its prefill progresses. Return what says nothing and every reader of the
        dialect takes: it is sent if nothing else was for a while."""
        ...

    def finish(self, usage: Usage) -> Frame:
        """Every choice has ended; `usage` is the sum over all."""
        ...

    def error(self, error: ApiError) -> Frame:
        """The answer ends here, incomplete."""
        ...


class EventStream(Response):
    """Streams one answer. Admission happens when the response starts, so a refusal still gets its own
    status."""

    def __init__(
        self,
        scheduler: Scheduler,
        requests: list[GenerationRequest],
        encoder: Encoder,
        keep_alive_seconds: float,
        meter: Callable[[Usage], None] | None = None,
        kept_bytes: int = 0,
    ) -> None:
        """Take several requests, if the body has several prompts; all have the same number of choices. The
        list is emptied: nothing but the scheduler may hold the prompt of an answer that takes minutes.
        `meter` is called before each event with the usage so far of that event's choice alone, for the
        encoder to report. `kept_bytes`: what else of the body the answer keeps."""
        super().__init__(headers=sse.HEADERS)
        # The body's length is unknown.
        del self.headers["content-length"]
        self._scheduler = scheduler
        self._requests = requests
        self._prompts, self._choices = len(requests), requests[0].choices
        self._request_id = requests[0].origin.request_id
        self._kept_bytes = kept_bytes
        self._encoder = encoder
        self._keep_alive_seconds = keep_alive_seconds
        self._meter = meter
        self._reports = False
        """Whether the client asked for comments about its request's progress."""
        self._silent_since = math.inf

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async with self._scheduler.stream(self._requests) as stream:
            release_body(scope, self._kept_bytes + stream.kept_bytes)
            encoder = self._encoder
            self._reports = any(name == sse.PROGRESS_HEADER for name, _ in scope.get("headers", ()))
            if stream.unheld:
                self.headers[HEADER] = ",".join(ignore(scope, *pointed(stream.unheld)))
            await send({"type": "http.response.start", "status": 200, "headers": self.raw_headers})
            self._silent_since = trio.current_time()
            await _send_all(send, encoder.start(stream.prompt_tokens), self._kept_alive(stream.progress))
            usages: dict[int, Usage] = {}
            choices = self._prompts * self._choices
            more = True
            while more:
                choice, event = await self._next(stream)
                if self._meter is not None:
                    self._meter(stream.usage_so_far(choice))
                frame = self._encode(choice, event)
                if frame:
                    self._silent_since = trio.current_time()
                last: Frame = b""
                if isinstance(event, Finished):
                    usages[choice] = event.usage
                    if len(usages) == choices:
                        in_order = [usages[number] for number in range(choices)]
                        last = encoder.finish(total_usage(in_order, self._choices))
                        more = False
                elif isinstance(event, Failed):
                    # One choice failed, so the answer as requested is impossible, and the other choices end
                    # too.
                    more = False
                if frame or not more:
                    await _send_all(send, frame, last, more=more)

    async def _next(self, stream: RequestStream) -> tuple[int, StreamEvent]:
        """Return the next event, or the request's progress if nothing happens for a while."""
        if (found := stream.take_choice_nowait()) is not None:
            # Without a checkpoint, this loop would never let another task run.
            await trio.lowlevel.checkpoint()
            return found
        with trio.move_on_at(self._silent_since + self._keep_alive_seconds):
            return await stream.receive_choice()
        return 0, stream.progress

    def _kept_alive(self, news: Progress) -> bytes:
        """Return what is sent while nothing but `news` happens, or nothing."""
        alive = self._encoder.progress(news)
        if self._reports:
            return sse.progress(news)
        silent = trio.current_time() >= self._silent_since + self._keep_alive_seconds
        return alive if silent else b""

    def _encode(self, choice: int, event: StreamEvent) -> Frame:
        match event:
            case Queued() | Prefilling():
                return self._kept_alive(event)
            case Failed(error=error):
                return self._encoder.error(
                    replace(from_scheduler(error), request_id=self._request_id or None)
                )
            case _:
                return self._encoder.event(choice, event)


async def _send_all(send: Send, *frames: Frame, more: bool = True) -> None:
    """Make the frames to their ends, and send them."""
    parts, size = list[bytes | memoryview](), 0
    for part in chain.from_iterable([one] if isinstance(one, bytes) else one for one in frames):
        parts.append(part)
        if (size := size + len(part)) >= _TURN_BYTES:
            size = 0
            await trio.lowlevel.checkpoint()
    held, size = list[bytes | memoryview](), 0
    for part in parts:
        held.append(part)
        if (size := size + len(part)) >= _TURN_BYTES:
            await send({"type": "http.response.body", "body": b"".join(held), "more_body": True})
            held, size = [], 0
    await send({"type": "http.response.body", "body": b"".join(held), "more_body": more})
