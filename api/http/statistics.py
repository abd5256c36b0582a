"""The server's counts."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field, replace

from api.http.refusals import Refusal


@dataclass(slots=True)
class ServerStatistics:
    open_connections: int = 0
    active_requests: int = 0
    """Requests in the application."""
    requests_total: int = 0
    """Requests passed to the application, whatever their outcome."""
    disconnects_total: int = 0
    """Clients that disconnected before their response was complete."""
    accept_failures_total: int = 0
    """Failed attempts: ten a second while there are no descriptors."""
    refusals_total: Counter[Refusal] = field(default_factory=Counter)

    def snapshot(self) -> ServerStatistics:
        return replace(self, refusals_total=self.refusals_total.copy())
