"""The server's counts: one mutable tally inside it, one frozen snapshot for readers."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

from api.http.refusals import Refusal


@dataclass(frozen=True, slots=True)
class ServerStatistics:
    open_connections: int
    active_requests: int
    """Requests in the application."""
    requests_total: int
    """Requests passed to the application, whatever their outcome."""
    disconnects_total: int
    """Clients that disconnected before their response was complete."""
    accept_failures_total: int
    """Failed attempts: ten a second while there are no descriptors."""
    refusals_total: Mapping[Refusal, int]
    """One entry for each kind, also if it is 0."""


class Tally:
    def __init__(self) -> None:
        self.open_connections = 0
        self.active_requests = 0
        self.requests = 0
        self.disconnects = 0
        self.accept_failures = 0
        self.refusals: Counter[Refusal] = Counter()

    def snapshot(self) -> ServerStatistics:
        return ServerStatistics(
            self.open_connections,
            self.active_requests,
            self.requests,
            self.disconnects,
            self.accept_failures,
            MappingProxyType({refusal: self.refusals[refusal] for refusal in Refusal}),
        )
