"""The record of a finished request: samples, one log line, and a row for the live page."""

from __future__ import annotations

import logging
from collections import deque
from dataclasses import replace
from itertools import islice

import structlog

from scheduler.errors import SchedulerError
from scheduler.events import CallFault
from scheduler.request import GenerationRequest
from scheduler.requests.record import StreamRecord
from scheduler.statistics import RequestReport
from scheduler.telemetry.containment import Containment
from scheduler.telemetry.metrics import ModelMetrics
from scheduler.telemetry.observation import observe_end, observe_refusal, outcome_before_acceptance


class RequestRecorder:
    """Records each request once, when it has ended or is refused. It never raises."""

    def __init__(self, metrics: ModelMetrics) -> None:
        self.recent = RecentRequests()
        self.metrics = metrics
        self._containment = Containment(metrics.server)
        self._faults: set[CallFault] = set()

    def refused(self, request: GenerationRequest, error: BaseException) -> None:
        """The request was rejected before it was accepted."""
        outcome = outcome_before_acceptance(error)
        self._containment.run("samples", observe_refusal, self.metrics, outcome, error)
        self._containment.run("log", log_refusal, self.metrics.model, request, outcome, error)

    def ended(self, record: StreamRecord, now: float) -> None:
        """The request has retired, with an outcome."""
        self._containment.run("samples", observe_end, self.metrics, record, now)
        self._containment.run("recent", self.recent.add, record, now)
        self._containment.run("log", log_request, self.metrics.model, record, now)
        self._containment.run("log", self._warn_of_drift, record)
        self._containment.run("time_line", record.time_line.check)

    def _warn_of_drift(self, record: StreamRecord) -> None:
        """Log the first call of each kind that cannot be read; the metric counts them all."""
        for fault in [fault for fault in record.pipeline.call_faults if fault not in self._faults]:
            self._faults.add(fault)
            _log.warning(
                "malformed_tool_call",
                **_identity(record.request),
                model=self.metrics.model,
                notation=record.pipeline.call_notation,
                kind=fault.value,
            )


_log = structlog.get_logger("request")


def log_request(model: str, record: StreamRecord, now: float) -> None:
    """Write the log line: ids, counts, seconds and the outcome; never text of the prompt or the answer.

    `wait_seconds` is the time in the intake queue, also of a request that ended there. `queue_seconds` is
    from arrival to the engine, so it includes tokenizing.
    """
    malformed = record.pipeline.call_faults.total()
    # What is read for numbers is one of thousands of texts of a batch, which has a line of its own
    # (`api/answers/blocks.py`).
    level = logging.DEBUG if record.request.kind != "chat" or record.request.labels else logging.INFO
    _log.log(
        level,
        "request",
        **_identity(record.request),
        model=model,
        outcome=record.outcome,
        engine=record.engine,
        prompt_tokens=len(record.submit.prompt),
        cached_tokens=record.cached_tokens,
        output_tokens=record.output_tokens,
        resumed=record.resumed,
        **({"malformed_tool_calls": malformed} if malformed else {}),
        wait_seconds=_between(
            record.queued_at, now if record.dispatched_at is None else record.dispatched_at
        ),
        queue_seconds=_between(record.arrived_at, record.dispatched_at),
        ttft_seconds=_between(record.arrived_at, record.first_token_at),
        total_seconds=_between(record.arrived_at, now),
    )


def log_refusal(model: str, request: GenerationRequest, outcome: str, error: BaseException) -> None:
    """Write the log line of a request that was never queued."""
    _log.info(
        "request",
        **_identity(request),
        model=model,
        outcome=outcome,
        refused=error.code if isinstance(error, SchedulerError) else type(error).__name__,
    )


def _identity(request: GenerationRequest) -> dict[str, str | int | None]:
    ignored = request.origin.ignored_fields
    return {
        "id": request.public_id,
        "request_id": request.origin.request_id,
        "tenant": request.tenant,
        "session": request.session,
        "priority": request.priority,
        **({"adapter": request.adapter} if request.adapter else {}),
        **({"ignored": ",".join(ignored)} if ignored else {}),
    }


def _between(start: float, end: float | None) -> float | None:
    return None if end is None else round(end - start, 4)


KEPT = 64


class RecentRequests:
    """The last KEPT finished requests, in memory only: 0.8 MB at most, with their time lines."""

    def __init__(self) -> None:
        self._kept: deque[RequestReport] = deque(maxlen=KEPT)
        self.number = 0
        """Number of the last request that ended: they count up, so that a reader can fetch only newer
        ones."""

    def add(self, record: StreamRecord, now: float) -> None:
        self.number += 1
        self._kept.append(record.report(now, with_spans=True))

    def since(self, number: int) -> list[RequestReport]:
        """Return requests after `number`, the oldest first, without their spans."""
        newer = min(self.number - number, len(self._kept))
        return [replace(one, spans=()) for one in islice(self._kept, len(self._kept) - newer, None)]

    def request_reports(self, public_id: str) -> list[RequestReport]:
        """Return the reports of a request's choices, the oldest first."""
        return [report for report in self._kept if report.id == public_id]
