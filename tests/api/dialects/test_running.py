"""A response that another request cancels: it ends between two events, and none is lost."""

from __future__ import annotations

from collections import deque
from typing import Any, cast

import pytest
import trio
from trio.testing import trio_test

from api.dialects.responses.encode import ResponseEncoder
from api.dialects.responses.running import RunningResponses, StoppableStream
from scheduler.events import Failed, StreamEvent, TextDelta
from scheduler.service import RequestStream, Scheduler
from tests.fakes.scheduling import ask


class Waiting:
    """A stream with events to take."""

    def __init__(self, events: int) -> None:
        self.waiting = deque(TextDelta(str(number)) for number in range(events))
        self.taken: list[StreamEvent] = []

    def take_choice_nowait(self) -> tuple[int, StreamEvent] | None:
        if not self.waiting:
            return None
        self.taken.append(self.waiting.popleft())
        return 0, self.taken[-1]

    async def receive_choice(self) -> tuple[int, StreamEvent]:
        await trio.sleep_forever()
        raise AssertionError


@pytest.mark.parametrize("events", [0, 1, 20])
@trio_test
async def test_an_event_that_was_taken_is_given(events: int) -> None:
    """Whenever the stop comes: trio shuffles its tasks, so it comes before and after each checkpoint."""
    for _ in range(50):
        source = Waiting(events)
        encoder = cast(ResponseEncoder, type("Encoder", (), {"response": {}, "kept_bytes": 0})())
        stream = StoppableStream(cast(Scheduler, None), [ask()], encoder, 60.0, RunningResponses())
        given: list[Any] = []

        async def read(source: Waiting, stream: StoppableStream, given: list[Any]) -> None:
            while not isinstance(event := (await stream._next(cast(RequestStream, source)))[1], Failed):
                given.append(event)
            stream._over.set()

        with trio.fail_after(5):
            async with trio.open_nursery() as nursery:
                nursery.start_soon(read, source, stream, given)
                await trio.lowlevel.checkpoint()
                nursery.start_soon(stream.stop)
        assert given == source.taken
