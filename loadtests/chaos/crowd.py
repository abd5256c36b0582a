"""Clients that send questions in order, and the answers that they got."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import count

import httpx
import trio

from loadtests.chaos.questions import Question
from loadtests.client import Answer, ask

_POLL_SECONDS = 0.02
CHAT = "/v1/chat/completions"


class Crowd:
    """Clients that send the questions in order, each when it is due."""

    def __init__(self, http: httpx.AsyncClient, url: str, asked: Sequence[Question], clients: int) -> None:
        self._http = http
        self._url = url + CHAT
        self.asked = asked
        self._clients = clients
        self._next = count()
        self.due = len(asked)
        """How many questions may have been sent by now."""
        self._in_flight: dict[int, Answer] = {}
        self.answers: dict[int, Answer] = {}

    @property
    def in_flight(self) -> int:
        return len(self._in_flight)

    @property
    def under_way(self) -> bool:
        """Return whether an answer has begun to arrive and has not ended."""
        return any(one.stamps and one.finish_reason is None for one in self._in_flight.values())

    async def ask_all(self) -> dict[int, Answer]:
        async with trio.open_nursery() as nursery:
            for _ in range(self._clients):
                nursery.start_soon(self._client)
        return self.answers

    async def _client(self) -> None:
        while (place := next(self._next)) < len(self.asked):
            while place >= self.due:  # noqa: ASYNC110 (a strike is no event of ours)
                await trio.sleep(_POLL_SECONDS)
            question = self.asked[place]
            answer = self.answers[question.number] = self._in_flight[place] = Answer()
            await ask(self._http, self._url, question.body, answer)
            del self._in_flight[place]


class Visit:
    """A client that may leave before its answer has ended."""

    def __init__(self, question: Question) -> None:
        self.question = question
        self.answer = Answer()
        self.left = False
        self._scope = trio.CancelScope()

    async def ask(self, http: httpx.AsyncClient, url: str) -> None:
        with self._scope:
            await ask(http, url + CHAT, self.question.body, self.answer)

    def leave(self) -> None:
        """Close the connection, unless the answer has ended."""
        if not self.answer.is_over:
            self.left = True
            self._scope.cancel()
