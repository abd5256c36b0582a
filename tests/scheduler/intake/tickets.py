"""Tickets and a server that serves them one at a time, for tests of the order of service."""

from __future__ import annotations

from itertools import count

from hypothesis import strategies as st

from scheduler.config import FairnessConfig, IntakeConfig
from scheduler.intake.fair_queue import FairQueue
from scheduler.intake.queue import IntakeQueue
from scheduler.intake.service_ledger import Ticket
from scheduler.requests.table import Requests

_ids = count(1)

sizes = st.integers(1, 4000)
"""Tokens of any prompt."""


def empty_queue(config: IntakeConfig) -> IntakeQueue:
    return IntakeQueue(config, Requests())


def dispatch_next(queue: IntakeQueue) -> None:
    """Send the next request to an engine."""
    queue._requests.dispatch(queue.pop(0.0), "0", 0.0)


def ticket(
    tenant: str = "",
    session: str = "",
    *,
    priority: int = 0,
    tokens: int = 100,
    output: int = 0,
    at: float = 0.0,
    request_id: int | None = None,
) -> Ticket:
    """`tokens` are its prompt's, none of them cached."""
    request_id = next(_ids) if request_id is None else request_id
    return Ticket(request_id, tenant, session, priority, tokens, tokens, output, at)


class Server:
    """Serves a queue one request at a time, each for as many seconds as it has tokens times a pace; each
    costs its estimate."""

    def __init__(self, config: FairnessConfig | None = None, seconds_per_token: float = 0.001) -> None:
        self.queue = FairQueue(config or FairnessConfig())
        self.now = 0.0
        self.served: list[Ticket] = []
        self._pace = seconds_per_token

    def push(self, *tickets: Ticket) -> None:
        for each in tickets:
            self.queue.push(each)

    def serve(self) -> Ticket:
        one = self.queue.pop(self.now)
        self.now += one.uncached_tokens * self._pace
        self.queue.charge_actual(one, one.uncached_tokens, one.output_tokens, self.now)
        self.served.append(one)
        return one
