"""Many prompts of one client's request: the scheduler has a few blocks of them at a time, not all.

A batch may be larger than the queue's bounds, and a queue that holds all of it at once would have no room for
others. So each block is made, and enters the queue, only when another has left, which also bounds the copies
of a ranking's query. The first must be accepted as any request is; a later one that finds the queue full
waits until there is room, as the client waits for all of them anyhow.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from typing import TypeAlias

import structlog
import trio

from scheduler.errors import DeadlineExceeded, QueueFull, SchedulerError, TenantLimit
from scheduler.events import Failed, Finished
from scheduler.request import GenerationRequest
from scheduler.service import RequestStream, Scheduler

_log = structlog.get_logger("batch")

BLOCK = 32
FEEDERS = 2
"""Blocks at a time: one is computed while the other is prepared and sent."""
_POLL_SECONDS = 0.05
_LONGEST_RETRY_SECONDS = 1.0
"""Bound on the pause after others took the room while a block was prepared, or after a tenant's own bound."""


Made: TypeAlias = Callable[[int, int], Awaitable[Sequence[GenerationRequest]]]
"""Makes the requests of one block, from `start` to `end`, which have one choice each."""


async def all_finished(scheduler: Scheduler, texts: int, made: Made) -> list[Finished]:
    """Follow the requests of `texts` texts to their ends. Return these in the same order.

    Raise SchedulerError if the first of them are not accepted, or one fails; the others are then cancelled.
    The requests' timeout is that of all of them together.
    """
    (first,) = await made(0, 1)
    blocks, started = _Blocks(scheduler, texts, first.timeout_seconds, made), trio.current_time()
    try:
        async with trio.open_nursery() as nursery:
            for _ in range(FEEDERS):
                nursery.start_soon(blocks.feed, nursery.cancel_scope)
    finally:
        _log_batch(first, texts, blocks, trio.current_time() - started)
    if blocks.failure is not None:
        raise blocks.failure
    return [blocks.ends[at] for at in range(texts)]


def _log_batch(first: GenerationRequest, texts: int, blocks: _Blocks, seconds: float) -> None:
    """Write the one log line of a client's request: counts and seconds, never a text."""
    outcome = "stop" if len(blocks.ends) == texts else "cancelled"
    _log.info(
        "batch",
        id=first.public_id,
        request_id=first.origin.request_id,
        tenant=first.tenant,
        kind=first.kind,
        outcome=outcome if blocks.failure is None else blocks.failure.code,
        texts=texts,
        done=len(blocks.ends),
        prompt_tokens=sum(end.usage.prompt_tokens for end in blocks.ends.values()),
        total_seconds=round(seconds, 4),
    )


class _Blocks:
    def __init__(self, scheduler: Scheduler, texts: int, timeout: float | None, made: Made) -> None:
        self._scheduler = scheduler
        self._texts = texts
        self._made = made
        self._block = max(1, min(BLOCK, scheduler.queue.most_per_client // FEEDERS))
        self._starts = iter(range(0, texts, self._block))
        self._deadline = None if timeout is None else trio.current_time() + timeout
        self._accepted = False
        self.ends: dict[int, Finished] = {}
        self.failure: SchedulerError | None = None
        """The first failure, or None. The caller raises it outside the nursery, which would wrap it in a
        group."""

    async def feed(self, everything: trio.CancelScope) -> None:
        """Send block after block. A failure cancels `everything`."""
        try:
            for start in self._starts:
                await self._send(start)
        except SchedulerError as error:
            self.failure = self.failure or error
            everything.cancel()

    async def _send(self, start: int) -> None:
        while True:
            # An attempt without room would count as a refused request.
            while self._accepted and self._scheduler.queue.room < self._block:  # noqa: ASYNC110 (others')
                await trio.sleep(_POLL_SECONDS)
            try:
                await self._follow(start)
                return
            except (QueueFull, TenantLimit) as full:
                if not self._accepted:
                    raise
                await trio.sleep(min(full.retry_after_seconds or 0.0, _LONGEST_RETRY_SECONDS))

    async def _follow(self, start: int) -> None:
        block = list(await self._made(start, min(start + self._block, self._texts)))
        if self._deadline is not None:
            left = self._deadline - trio.current_time()
            if left <= 0:
                raise DeadlineExceeded("the request's timeout passed before its last text was computed")
            block = [replace(request, timeout_seconds=left) for request in block]
        texts = len(block)
        async with self._scheduler.stream(block) as stream:
            self._accepted = True
            for _ in range(texts):
                index, end = await self._next_end(stream)
                self.ends[start + index] = end

    @staticmethod
    async def _next_end(stream: RequestStream) -> tuple[int, Finished]:
        while True:
            index, event = await stream.receive_choice()
            match event:
                case Finished():
                    return index, event
                case Failed(error=error):
                    raise error
                case _:
                    pass
