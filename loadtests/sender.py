"""Send the requests of one run, record each with its outcome, and count them."""

from __future__ import annotations

from collections.abc import Callable
from itertools import count
from typing import Any

import httpx
import trio

from loadtests.client import Observed, follow
from loadtests.record import Outcome, RequestRecord
from loadtests.targets import Target, build_body
from loadtests.workload import Ask, Session


class Sender:
    """`started` is the run's start on trio's clock; `on_hang_up` gets the index of each request that its
    client abandoned. Counts are kept while requests run: a display reads them four times a second."""

    def __init__(self, target: Target, salt: str, started: float, on_hang_up: Callable[[int], None]) -> None:
        self._target = target
        self._salt = salt
        self._started = started
        self._on_hang_up = on_hang_up
        self._indices = count()
        self._in_flight: dict[int, Observed] = {}
        self._recorded_deltas = 0
        self.records: list[RequestRecord] = []
        """Records of ended requests, in the order in which they ended."""
        self.sent = 0
        self.finished = 0
        """Requests that ended as the scenario wanted: answered, or abandoned by their client."""

    @property
    def in_flight(self) -> int:
        return len(self._in_flight)

    @property
    def failed(self) -> int:
        return len(self.records) - self.finished

    @property
    def deltas(self) -> int:
        """Return the deltas of all requests until now. O(in flight)."""
        return self._recorded_deltas + sum(
            len(observed.answer.stamps) for observed in self._in_flight.values()
        )

    async def send(
        self, client: httpx.AsyncClient, session: Session, turn: int, wish: Ask, due: float
    ) -> Observed:
        """Send one request and follow it to its end; `due` is when it should have been sent, in seconds of
        the run. A cancelled one is recorded, too."""
        index = next(self._indices)
        self.sent += 1
        observed = self._in_flight[index] = Observed(sent_at=trio.current_time())
        body: dict[str, Any] = build_body(wish, self._target)
        try:
            await follow(client, self._target.chat_url, self._headers(session, wish), body, wish, observed)
        finally:
            del self._in_flight[index]
            self._keep(self._record(index, session, turn, wish, due, observed))
        return observed

    def _headers(self, session: Session, wish: Ask) -> dict[str, str]:
        # With the salt, because the target may remember the agents of a probe or of an earlier run.
        headers = {**self._target.headers, "x-session-id": f"{self._salt} {session.id}"}
        if wish.timeout_seconds is not None:
            headers["x-request-timeout"] = f"{wish.timeout_seconds:g}"
        return headers

    def _keep(self, record: RequestRecord) -> None:
        self.records.append(record)
        self._recorded_deltas += len(record.stamps)
        self.finished += record.outcome in (Outcome.OK, Outcome.HUNG_UP)
        if record.outcome is Outcome.HUNG_UP:
            self._on_hang_up(record.index)

    def _record(
        self, index: int, session: Session, turn: int, wish: Ask, due: float, observed: Observed
    ) -> RequestRecord:
        usage = observed.answer.usage
        return RequestRecord(
            index=index,
            population=session.population,
            tenant=session.tenant,
            # A subagent's requests belong to its parent's session: "agents-3/1" to "agents-3".
            session=session.id.partition("/")[0],
            turn=turn,
            session_turns=session.turns,
            scheduled_at=due,
            sent_at=observed.sent_at - self._started,
            stamps=tuple(stamp - self._started for stamp in observed.answer.stamps),
            ended_at=observed.ended_at - self._started,
            outcome=observed.outcome,
            status=observed.status,
            detail=observed.detail,
            finish_reason=observed.answer.ended,
            prompt_tokens=None if usage is None else usage.prompt_tokens,
            cached_tokens=None if usage is None else usage.cached_tokens,
            output_tokens=None if usage is None else usage.output_tokens,
            reusable_share=wish.reusable_share,
            retry_after_seconds=observed.retry_after_seconds,
            correct=_correct(wish, observed),
        )


def _correct(wish: Ask, observed: Observed) -> bool | None:
    """Return whether the answer contains the expected one; None if there is none, or the answer did not
    end."""
    if wish.expected is None or observed.outcome is not Outcome.OK:
        return None
    return wish.expected in "".join(observed.answer.text)
