"""A streamed answer with `continuous_usage_stats`: each chunk has the number of tokens of its choice so
far."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from api.answers.event_stream import Encoder, EventStream
from scheduler.events import StreamEvent, Usage
from scheduler.request import GenerationRequest
from scheduler.service import RequestStream, Scheduler


class MeteredEncoder(Encoder, Protocol):
    def meter(self, usage: Usage) -> None:
        """What the next event's chunk reports: the usage of its choice alone, as vLLM's does."""
        ...


class MeteredStream(EventStream):
    def __init__(
        self,
        scheduler: Scheduler,
        request: GenerationRequest | Sequence[GenerationRequest],
        encoder: MeteredEncoder,
        keep_alive_seconds: float,
    ) -> None:
        super().__init__(scheduler, request, encoder, keep_alive_seconds)
        self._metered = encoder

    async def _next(self, stream: RequestStream) -> tuple[int, StreamEvent]:
        choice, event = await super()._next(stream)
        self._metered.meter(stream.usage_so_far(choice))
        return choice, event
