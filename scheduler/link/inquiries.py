"""Questions to the engine, and the tasks that wait for its answers."""

from __future__ import annotations

from collections.abc import Callable
from itertools import count

import trio

from scheduler.errors import Unavailable
from scheduler.link.messages import Inspect, Inspection

_ANSWER_SECONDS = 30.0
"""The engine answers between two steps; one of a large prompt takes seconds."""


class _Waiting:
    def __init__(self) -> None:
        self.answer: Inspection | None = None
        self.done = trio.Event()


class Inquiries:
    """Whoever asks gets one answer or one error, also when the engine dies meanwhile."""

    def __init__(self) -> None:
        self._numbers = count(1)
        self._waiting: dict[int, _Waiting] = {}

    async def inspect(
        self, send: Callable[[Inspect], None], clear: bool, top: int, head_tokens: int
    ) -> Inspection:
        """Raises Unavailable where no answer comes."""
        number, waiting = next(self._numbers), _Waiting()
        self._waiting[number] = waiting
        try:
            send(Inspect(number, clear, top, head_tokens))
            with trio.move_on_after(_ANSWER_SECONDS):
                await waiting.done.wait()
        finally:
            del self._waiting[number]
        if waiting.answer is None:
            raise Unavailable("the engine did not answer", retry_after_seconds=1.0)
        return waiting.answer

    def answered(self, inspection: Inspection) -> None:
        """Deliver; who asked may have left."""
        if (waiting := self._waiting.get(inspection.query)) is not None:
            waiting.answer = inspection
            waiting.done.set()

    def engine_lost(self) -> None:
        for waiting in self._waiting.values():
            waiting.done.set()
