"""What remains of a request when it is over: samples, a log line, a row for the live page, and spans."""

from __future__ import annotations

from typing import Protocol

from scheduler.request import GenerationRequest
from scheduler.requests.record import StreamRecord
from scheduler.telemetry.containment import Containment
from scheduler.telemetry.metrics import Metrics
from scheduler.telemetry.observation import observe_end, observe_refusal, outcome_before_acceptance
from scheduler.telemetry.recent_requests import RecentRequests
from scheduler.telemetry.request_log import log_refusal, log_request


class Tracer(Protocol):
    """Who makes spans of a request that has ended. Called in the engine reader's task: it may not wait."""

    def end(self, record: StreamRecord, now: float) -> None: ...


class RequestRecorder:
    """Called once for each request, by whoever ends it. It never raises. `tracer` None: no traces."""

    def __init__(self, metrics: Metrics, tracer: Tracer | None = None) -> None:
        self.recent = RecentRequests()
        self._metrics = metrics
        self._tracer = tracer
        self._containment = Containment(metrics)

    def refused(self, request: GenerationRequest, error: BaseException) -> None:
        """It left before it was accepted."""
        outcome = outcome_before_acceptance(error)
        self._containment.run("samples", observe_refusal, self._metrics, outcome, error)
        self._containment.run("log", log_refusal, request, outcome, error)

    def ended(self, record: StreamRecord, now: float) -> None:
        """It has left its last table, with an outcome."""
        self._containment.run("samples", observe_end, self._metrics, record, now)
        self._containment.run("recent", self.recent.add, record, now)
        self._containment.run("log", log_request, record, now)
        if self._tracer is not None:
            self._containment.run("tracer", self._tracer.end, record, now)
