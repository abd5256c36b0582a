"""What happens to engines and their requests, as an engine reports it to its pool and the pool to the
service."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Protocol

from scheduler.requests.record import StreamRecord

if TYPE_CHECKING:
    from scheduler.engines.engine import Engine


class EngineObserver(Protocol):
    """Called in the task that reads a link: nothing here may wait."""

    def engine_ready(self, engine: Engine) -> None:
        """It may take a request that it could not take before."""
        ...

    def progressed(self, engine: Engine, moved: Sequence[StreamRecord], now: float) -> None:
        """A step computed something for these requests."""
        ...

    def engine_lost(self, engine: Engine) -> None:
        """It takes no more requests for now: its process has ended, it drains, or has left. Also when the
        cause of an end becomes known: what died with it may go on elsewhere."""
        ...

    def retired(self, record: StreamRecord) -> None: ...
