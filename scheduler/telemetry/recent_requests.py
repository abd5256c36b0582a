"""The last requests that ended, with the times of their lives: for an operator's eyes, in memory only."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

from scheduler.requests.record import StreamRecord

KEPT = 64


@dataclass(frozen=True, slots=True)
class RecentRequest:
    """`number` counts up, so that a reader can ask for what it has not seen. Seconds count from arrival and
    are None for what did not happen."""

    number: int
    id: str
    tenant: str
    session: str
    outcome: str
    prompt_tokens: int
    cached_tokens: int
    output_tokens: int
    dispatched_seconds: float | None
    first_token_seconds: float | None
    total_seconds: float


class RecentRequests:
    def __init__(self) -> None:
        self._kept: deque[RecentRequest] = deque(maxlen=KEPT)
        self._number = 0

    def add(self, record: StreamRecord, now: float) -> None:
        request, start = record.prepared.request, record.arrived_at
        self._number += 1
        self._kept.append(
            RecentRequest(
                number=self._number,
                id=request.public_id,
                tenant=request.tenant,
                session=request.session or "",
                outcome=record.outcome or "error",
                prompt_tokens=len(record.prepared.prompt),
                cached_tokens=record.cached_tokens,
                output_tokens=record.output_tokens,
                dispatched_seconds=None if record.dispatched_at is None else record.dispatched_at - start,
                first_token_seconds=None if record.first_token_at is None else record.first_token_at - start,
                total_seconds=now - start,
            )
        )

    def since(self, number: int) -> list[RecentRequest]:
        """Those after `number`, the oldest first."""
        return [one for one in self._kept if one.number > number]
