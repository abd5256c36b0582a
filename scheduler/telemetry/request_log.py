"""The one canonical log line of a request, written when it has left every table."""

from __future__ import annotations

import structlog

from scheduler.streams.record import StreamRecord

_log = structlog.get_logger("request")


def log_request(record: StreamRecord, now: float) -> None:
    """Ids, counts, waits in seconds and the outcome; never a word of the prompt or the answer."""
    _log.info(
        "request",
        id=record.prepared.request.public_id,
        outcome=record.outcome,
        prompt_tokens=len(record.prepared.prompt),
        output_tokens=record.output_tokens,
        queue_seconds=_between(record.arrived_at, record.dispatched_at),
        ttft_seconds=_between(record.arrived_at, record.first_token_at),
        total_seconds=_between(record.arrived_at, now),
    )


def _between(start: float, end: float | None) -> float | None:
    return None if end is None else round(end - start, 4)
