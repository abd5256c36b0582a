"""Send requests, as many at once as the server has room for, until each has its answer."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any, BinaryIO

import httpx
import trio

from api.cli.batch.lines import Line, append
from api.cli.running_server import FAILURES, RunningServer, refusal, trouble
from api.cli.terminal import ENDING, one_line
from scheduler.request import PRIORITIES

MOST_AT_ONCE = 256
"""A quarter of the requests that wait in a Penstock by default: others find room beside a batch."""
_FIRST_AT_ONCE = 8
_MOST_NAMED = 5
_TRIES = 3
"""How often a request is sent whose answer is a server's error, or that its own time was too short."""
_JSON = {"content-type": "application/json"}
_NO_ROOM = (429, 502, 503)
_TOO_SLOW = 408
_LEAST_PAUSE_SECONDS, _MOST_PAUSE_SECONDS = 1.0, 60.0
_PATIENCE_SECONDS = 600.0
"""Longest time without any answer while the server has room for no request, or is away."""
_ALL = httpx.Limits()
"""As many connections as there are requests under way."""
_TIMEOUT = httpx.Timeout(None, connect=10.0)
"""An answer may wait for hours behind other requests, and other servers send nothing meanwhile."""


@dataclass(slots=True)
class Sending:
    """From one file to the other, of `lines.py`. `str` says what goes on."""

    server: RunningServer
    model: str | None
    source: BinaryIO
    answers: BinaryIO
    progressed: Callable[[], None]
    transport: httpx.AsyncBaseTransport | None = None
    statuses: Counter[int] = field(default_factory=Counter)
    refused: list[str] = field(default_factory=list)
    """The first requests that were refused, each with the reason."""
    ended_by: int | None = None
    """The signal that ended `run` early."""
    gave_up: str = ""
    """Why else it ended early."""
    room: trio.CapacityLimiter = field(default_factory=lambda: trio.CapacityLimiter(_FIRST_AT_ONCE))
    """Twice as large after each round until it first is too large, then half, and larger by one a round."""
    _over: trio.CancelScope = field(default_factory=trio.CancelScope)
    _waits_for: str = ""
    """Why nothing new is sent; empty if something may be."""
    _resumes_at: float = 0.0
    """0 before the server first had no room."""
    _pause_seconds: float = _LEAST_PAUSE_SECONDS
    _last_answer_at: float = 0.0

    def __str__(self) -> str:
        under_way = f"{self.room.borrowed_tokens} of {self.room.total_tokens} at once"
        return one_line(self._waits_for, 60) or under_way

    async def run(self, lines: Iterable[Line]) -> None:
        """Return when all have their answers, at one of the signals `ENDING`, or when the server has had no
        room for any for ten minutes, or the disk none for an answer."""
        todo, self._last_answer_at = iter(lines), trio.current_time()
        with trio.open_signal_receiver(*ENDING) as signals, self._over:
            where = self.server.address
            async with (
                httpx.AsyncClient(
                    trust_env=where.trust_env,
                    headers=where.headers,
                    timeout=_TIMEOUT,
                    transport=self.transport,
                    limits=_ALL,
                ) as http,
                trio.open_nursery() as tasks,
            ):
                tasks.start_soon(self._obey, signals)
                async with trio.open_nursery() as workers:
                    for _ in range(MOST_AT_ONCE):
                        workers.start_soon(self._work, todo, http)
                self._over.cancel()

    async def _obey(self, signals: AsyncIterator[int]) -> None:
        self.ended_by = await anext(signals)
        self._over.cancel()

    async def _work(self, todo: Iterator[Line], http: httpx.AsyncClient) -> None:
        for line in todo:
            for _ in range(_TRIES):
                answer = await self._ask(line, http)
                if answer.status_code < 500 and answer.status_code != _TOO_SLOW:
                    break
            try:
                append(self.answers, line, answer)
            except OSError as error:
                self._give_up(f"{self.answers.name} cannot be written: {error.strerror or error}")
                return
            self.statuses[answer.status_code] += 1
            if not self._resumes_at or self.statuses.total() % self.room.total_tokens == 0:
                self.room.total_tokens = min(MOST_AT_ONCE, self.room.total_tokens + 1)
            if answer.status_code != 200 and len(self.refused) < _MOST_NAMED:
                self.refused.append(f"{line.custom_id}: {refusal(answer.status_code, answer.content)}")
            self.progressed()

    async def _ask(self, line: Line, http: httpx.AsyncClient) -> httpx.Response:
        """Return the answer. Where the server has no room, or is away, fewer are sent, and later, once for
        those that were sent together."""
        while True:
            async with self.room:
                await trio.sleep_until(self._resumes_at)
                self._waits_for = retry_after = ""
                url, body = self.server.url + line.url, self._body(line)
                try:
                    answer = await http.post(url, content=body, headers=_JSON)
                    if answer.status_code not in _NO_ROOM:
                        self._last_answer_at, self._pause_seconds = trio.current_time(), _LEAST_PAUSE_SECONDS
                        return answer
                    self._waits_for = refusal(answer.status_code, answer.content)
                    retry_after = answer.headers.get("retry-after", "")
                except FAILURES as error:
                    self._waits_for = trouble(self.server.address, error)
                now, under_way = trio.current_time(), self.room.borrowed_tokens
                if under_way == 1 and now - self._last_answer_at > _PATIENCE_SECONDS:
                    self._give_up(self._waits_for)
                if now >= self._resumes_at:
                    self.room.total_tokens = max(1, under_way // 2)
                    # A date, which few servers send, says nothing.
                    named = min(_PATIENCE_SECONDS, float(retry_after)) if retry_after.isdecimal() else 0.0
                    self._resumes_at = now + max(self._pause_seconds, named)
                    self._pause_seconds = min(_MOST_PAUSE_SECONDS, 2 * self._pause_seconds)

    def _give_up(self, why: str) -> None:
        self.gave_up = why
        self._over.cancel()

    def _body(self, line: Line) -> str:
        """Return the request's body. What JSON has not, the server refuses."""
        self.source.seek(line.at)
        body: dict[str, Any] = json.loads(self.source.readline())["body"]
        behind = {"priority": PRIORITIES[-1]} if self.server.is_penstock else {}
        named = {"model": self.model or body.get("model") or self.server.model(None).name}
        return json.dumps(behind | body | named)
