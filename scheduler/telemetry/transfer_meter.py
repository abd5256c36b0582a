"""Count a prefix on its way into a file, or out of one: how it ended, and what had moved by then."""

from __future__ import annotations

from types import TracebackType
from typing import Literal, TypeAlias

import trio

from scheduler.errors import InvalidRequest, Unavailable
from scheduler.telemetry.containment import Containment
from scheduler.telemetry.metrics import ModelMetrics

Direction: TypeAlias = Literal["export", "import"]


class TransferMeter:
    """A context manager around one transfer. Without an error and not `whole` at its end, the client has
    left."""

    def __init__(self, metrics: ModelMetrics, direction: Direction) -> None:
        self._metrics = metrics
        self._direction = direction
        self._telemetry = Containment(metrics.server)
        self._outcome = "left"
        self._started = 0.0
        self.nbytes = 0
        """Of the file, that have passed."""
        self.tokens = 0
        """In the bytes that have passed."""

    def whole(self) -> None:
        self._outcome = "done"

    def failed(self, error: BaseException) -> None:
        """Call this with an error that does not leave the context."""
        match error:
            case InvalidRequest():
                self._outcome = "refused"
            case Unavailable():
                self._outcome = "unavailable"
            case _:
                self._outcome = "left"

    def __enter__(self) -> TransferMeter:
        self._started = trio.current_time()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if error is not None:
            self.failed(error)
        self._telemetry.sample(self._observe)

    def _observe(self) -> None:
        metrics, direction = self._metrics, self._direction
        ended = metrics.prefix_exports if direction == "export" else metrics.prefix_imports
        ended[self._outcome].inc()
        metrics.transferred_tokens[direction].inc(self.tokens)
        metrics.transferred_bytes[direction].inc(self.nbytes)
        metrics.transfer_seconds[direction].inc(trio.current_time() - self._started)
