"""The one canonical log line of a request, written when it has left every table."""

from __future__ import annotations

import structlog

from scheduler.errors import SchedulerError
from scheduler.request import GenerationRequest
from scheduler.requests.record import StreamRecord

_log = structlog.get_logger("request")


def log_request(record: StreamRecord, now: float) -> None:
    """Ids, counts, waits in seconds and the outcome; never a word of the prompt or the answer.

    `wait_seconds` is the intake queue's share, also of a request that ended there; `queue_seconds` counts
    from its arrival, so it includes tokenizing, and ends at the engine.
    """
    _log.info(
        "request",
        **_whose(record.prepared.request),
        outcome=record.outcome,
        prompt_tokens=len(record.prepared.prompt),
        cached_tokens=record.cached_tokens,
        output_tokens=record.output_tokens,
        resumed=record.resumed,
        wait_seconds=_between(
            record.queued_at, now if record.dispatched_at is None else record.dispatched_at
        ),
        queue_seconds=_between(record.arrived_at, record.dispatched_at),
        ttft_seconds=_between(record.arrived_at, record.first_token_at),
        total_seconds=_between(record.arrived_at, now),
    )


def log_refusal(request: GenerationRequest, outcome: str, error: BaseException) -> None:
    """The one line of a request that was never queued."""
    _log.info(
        "request",
        **_whose(request),
        outcome=outcome,
        refused=error.code if isinstance(error, SchedulerError) else type(error).__name__,
    )


def _whose(request: GenerationRequest) -> dict[str, str | int | None]:
    return {
        "id": request.public_id,
        "request_id": request.origin.request_id,
        "tenant": request.tenant,
        "session": request.session,
        "priority": request.priority,
    }


def _between(start: float, end: float | None) -> float | None:
    return None if end is None else round(end - start, 4)
