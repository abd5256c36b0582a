"""Send requests, as many at once as the server has room for, until each has its answer."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import httpx
import trio

from api.cli.batch.lines import Line
from api.cli.running_server import FAILURES, Address, refusal, trouble

MOST_AT_ONCE = 256
"""A quarter of the requests that wait in a Penstock by default: others find room beside a batch."""
_FIRST_AT_ONCE = 8
_TRIES = 3
"""How often a request is sent whose answer is a server's error."""
_NO_ROOM = (408, 429, 502, 503, 504)
_LEAST_PAUSE_SECONDS = 1.0
_MOST_PAUSE_SECONDS = 60.0
_PATIENCE_SECONDS = 600.0
"""Longest time without any answer while the server has room for no request, or is away."""


@dataclass(slots=True)
class Sending:
    """`answered` is called with each line and its answer; `body_of` reads a request's body."""

    http: httpx.AsyncClient
    where: Address
    body_of: Callable[[Line], dict[str, Any]]
    answered: Callable[[Line, httpx.Response], None]
    at_once: float = _FIRST_AT_ONCE
    """How many may be under way: twice as many after each round until the server first has no room, then half
    as many, and one more after each round."""
    in_flight: int = 0
    waits_for: str = ""
    """Why nothing new is sent; empty if something may be."""
    _todo: deque[Line] = field(default_factory=deque)
    _errors: dict[str, int] = field(default_factory=dict)
    _changed: trio.Event = field(default_factory=trio.Event)
    _was_full: bool = False
    _resumes_at: float = 0.0
    _pause_seconds: float = _LEAST_PAUSE_SECONDS
    _last_answer_at: float = 0.0
    gave_up: str = ""
    """Why `run` returned before the end."""

    async def run(self, lines: Sequence[Line]) -> None:
        """Return when all have their answers, or when the server has had no room for any for ten minutes."""
        self._todo.extend(lines)
        self._last_answer_at = trio.current_time()
        async with trio.open_nursery() as nursery:
            while (self._todo or self.in_flight) and not self.gave_up:
                if (
                    self._todo
                    and self.in_flight < int(self.at_once)
                    and trio.current_time() >= self._resumes_at
                ):
                    self.waits_for = ""
                    self.in_flight += 1
                    nursery.start_soon(self._ask, self._todo.popleft())
                    continue
                self._changed = trio.Event()
                paused = self._todo and self.in_flight < int(self.at_once)
                with trio.move_on_at(self._resumes_at if paused else float("inf")):
                    await self._changed.wait()

    async def _ask(self, line: Line) -> None:
        try:
            url = self.where.url + line.url
            answer = await self.http.post(url, json=self.body_of(line))
        except FAILURES as error:
            self._again(line, trouble(self.where, error), None)
        else:
            self._judge(line, answer)
        self.in_flight -= 1
        self._changed.set()

    def _judge(self, line: Line, answer: httpx.Response) -> None:
        status = answer.status_code
        if status in _NO_ROOM:
            self._again(line, refusal(status, answer.content), answer.headers.get("retry-after"))
            return
        self._last_answer_at, self._pause_seconds = trio.current_time(), _LEAST_PAUSE_SECONDS
        if status >= 500:
            self._errors[line.custom_id] = self._errors.get(line.custom_id, 0) + 1
            if self._errors[line.custom_id] < _TRIES:
                self._todo.append(line)
                return
        self.at_once = min(MOST_AT_ONCE, self.at_once + (1 / self.at_once if self._was_full else 1))
        self.answered(line, answer)

    def _again(self, line: Line, why: str, retry_after: str | None) -> None:
        """Send it again later, and fewer at once. Those that were sent together slow down together, once."""
        now = trio.current_time()
        if self.in_flight == 1 and now - self._last_answer_at > _PATIENCE_SECONDS:
            self.gave_up = why
        self.waits_for = why
        self._todo.appendleft(line)
        if now < self._resumes_at:
            return
        self._was_full = True
        self.at_once = max(1, self.in_flight // 2)
        self._resumes_at = now + max(self._pause_seconds, _seconds(retry_after))
        self._pause_seconds = min(_MOST_PAUSE_SECONDS, 2 * self._pause_seconds)


def _seconds(retry_after: str | None) -> float:
    """Return a Retry-After in seconds; 0 for a date, which few servers send."""
    return min(_PATIENCE_SECONDS, float(retry_after)) if retry_after and retry_after.isdecimal() else 0.0
