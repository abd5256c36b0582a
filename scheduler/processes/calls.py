"""Messages to one process that it answers, by number, and the tasks that wait for the answers."""

from __future__ import annotations

from collections.abc import Callable
from itertools import count
from typing import Any, Generic, TypeVar

import trio

from scheduler.shared.messages import ToEngine

_Reply = TypeVar("_Reply")


class Call(Generic[_Reply]):
    """A question that was sent; several tasks may wait for its reply."""

    def __init__(self, number: int) -> None:
        self.number = number
        self.sent_at = trio.current_time()
        self.reply: _Reply | None = None
        self.done = trio.Event()
        self.waiters = 0


class Calls:
    """Every call gets one reply or none, also when the process ends meanwhile."""

    def __init__(self, send: Callable[[ToEngine], None]) -> None:
        self._send = send
        self._numbers = count(1)
        self._open: dict[int, Call[Any]] = {}
        self._closed = False

    def send(self, question: Callable[[int], ToEngine], reply: type[_Reply]) -> Call[_Reply]:
        """Send `question(number)`, which is answered by a `reply` of that number."""
        call: Call[_Reply] = Call(next(self._numbers))
        if self._closed:
            call.done.set()
            return call
        self._send(question(call.number))
        self._open[call.number] = call
        return call

    async def wait(self, call: Call[_Reply], seconds: float) -> _Reply | None:
        """Return None if no reply comes within `seconds`, or none any more."""
        call.waiters += 1
        try:
            with trio.move_on_after(seconds):
                await call.done.wait()
        finally:
            call.waiters -= 1
            if not call.waiters:
                self._open.pop(call.number, None)
        return call.reply

    def is_open(self, call: Call[Any]) -> bool:
        """Return whether it was answered, or still may be."""
        return call.done.is_set() or call.number in self._open

    def answered(self, number: int, reply: object) -> bool:
        """Deliver a reply. Return whether a call waited for it; the callers may have left."""
        if (call := self._open.pop(number, None)) is None:
            return False
        call.reply = reply
        call.done.set()
        return True

    def close(self) -> None:
        """The process has ended."""
        self._closed = True
        for call in self._open.values():
            call.done.set()
        self._open.clear()
