"""Contain faults in telemetry: they cost a sample, a log line or a span, and never a stream.

Telemetry runs in the task that reads the link and in requests' own tasks. An exception there would end every
stream, or the request that it describes.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import ParamSpec

import structlog

from scheduler.telemetry.metrics import Metrics

_log = structlog.get_logger("telemetry")
_P = ParamSpec("_P")


class Containment:
    """Runs parts of the telemetry and catches what they raise. Each kind of failure (part and exception type)
    is logged once; every failure counts in `penstock_telemetry_failures_total`."""

    def __init__(self, metrics: Metrics) -> None:
        self._metrics = metrics
        self._logged: set[tuple[str, type[Exception]]] = set()

    def run(self, part: str, work: Callable[_P, object], *args: _P.args, **options: _P.kwargs) -> None:
        """Call `work(*args)`, and catch its exceptions. `part` is one of TELEMETRY_PARTS."""
        try:
            work(*args, **options)
        except Exception as error:
            # The failure may be in the metric or the log itself.
            with suppress(Exception):
                self._metrics.telemetry_failures[part].inc()
            with suppress(Exception):
                self._log_once(part, error)

    def sample(self, work: Callable[_P, object], *args: _P.args, **options: _P.kwargs) -> None:
        """Run work that only makes samples."""
        self.run("samples", work, *args, **options)

    def _log_once(self, part: str, error: Exception) -> None:
        kind = (part, type(error))
        if kind not in self._logged:
            self._logged.add(kind)
            _log.error("telemetry_failed", part=part, exc_info=error)
