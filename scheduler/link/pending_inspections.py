"""Questions to the engine, and the tasks that wait for its answers."""

from __future__ import annotations

from collections.abc import Callable
from itertools import count

import msgspec
import trio

from scheduler.errors import Unavailable
from scheduler.link.messages import CacheReport, Inspect, Inspection, PrefixReport

_ANSWER_SECONDS = 30.0
"""The engine answers between two steps; one of a large prompt takes seconds."""
_SHARED_SECONDS = 1.0
"""How old an answer may be that another viewer gets. Each costs the engine part of a turn, and one with
trunks a walk of the prefix tree: 43 ms at 15,000 nodes."""


class _Question:
    """One that was sent; several viewers may wait for its answer."""

    def __init__(self, inspect: Inspect, asked_at: float) -> None:
        self.inspect = inspect
        self.asked_at = asked_at
        self.viewers = 0
        self.answer: Inspection | None = None
        self.done = trio.Event()


class PendingInspections:
    """Every caller gets one answer or one error, also when the engine dies meanwhile."""

    def __init__(self) -> None:
        self._numbers = count(1)
        self._open: dict[int, _Question] = {}
        self._shared: _Question | None = None
        """The last question of a viewer, open or answered."""

    async def inspect(
        self, send: Callable[[Inspect], None], clear: bool, top: int, head_tokens: int
    ) -> Inspection:
        """What the engine holds, up to a second ago; after a clear, now. Raises Unavailable where no answer
        comes."""
        if clear:
            self._shared = None
            return await self._wait(self._ask(send, clear=True, top=top, head_tokens=head_tokens))
        question = self._shared
        if question is None or not _answers(question, top, head_tokens, trio.current_time()):
            question = self._shared = self._ask(send, clear=False, top=top, head_tokens=head_tokens)
        return _cut(await self._wait(question), top, head_tokens)

    def answered(self, inspection: Inspection) -> None:
        """Deliver. The callers may have left."""
        if (question := self._open.pop(inspection.query, None)) is not None:
            question.answer = inspection
            question.done.set()

    def engine_lost(self) -> None:
        for question in self._open.values():
            question.done.set()
        self._open.clear()
        self._shared = None

    def _ask(self, send: Callable[[Inspect], None], *, clear: bool, top: int, head_tokens: int) -> _Question:
        inspect = Inspect(next(self._numbers), clear, top, head_tokens)
        send(inspect)
        question = self._open[inspect.query] = _Question(inspect, trio.current_time())
        return question

    async def _wait(self, question: _Question) -> Inspection:
        question.viewers += 1
        try:
            with trio.move_on_after(_ANSWER_SECONDS):
                await question.done.wait()
        finally:
            question.viewers -= 1
            if not question.viewers and not question.done.is_set():
                self._forget(question)
        if question.answer is None:
            raise Unavailable("the engine did not answer", retry_after_seconds=1.0)
        return question.answer

    def _forget(self, question: _Question) -> None:
        self._open.pop(question.inspect.query, None)
        if self._shared is question:
            self._shared = None


def _answers(question: _Question, top: int, head_tokens: int, now: float) -> bool:
    """Whether its answer, here or on the way, has what a viewer wants. An open one has no age: to ask again
    would not be answered sooner."""
    is_fresh = not question.done.is_set() or now - question.asked_at < _SHARED_SECONDS
    return is_fresh and question.inspect.top >= top and question.inspect.head_tokens >= head_tokens


def _cut(inspection: Inspection, top: int, head_tokens: int) -> Inspection:
    if inspection.cache is None:
        return inspection
    prefixes = [_cut_prefix(prefix, head_tokens) for prefix in inspection.cache.trunks[:top]]
    cache: CacheReport = msgspec.structs.replace(inspection.cache, trunks=prefixes)
    return msgspec.structs.replace(inspection, cache=cache)


def _cut_prefix(prefix: PrefixReport, head_tokens: int) -> PrefixReport:
    return msgspec.structs.replace(prefix, head=prefix.head[:head_tokens])
