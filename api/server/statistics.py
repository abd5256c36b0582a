"""Counts of what the server did: one mutable tally inside it, one frozen snapshot for its readers."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

from api.server.refusals import Refusal


@dataclass(frozen=True, slots=True)
class ServerStatistics:
    open_connections: int
    active_requests: int
    """The application is running for them."""
    accepted_connections_total: int
    requests_total: int
    """Given to the application, whatever came of it."""
    disconnects_total: int
    """Clients that left before their response was whole."""
    accept_failures_total: int
    """Attempts: while there are no descriptors, ten a second."""
    refusals_total: Mapping[Refusal, int]
    """One entry for each kind, also where it is 0."""


class Tally:
    def __init__(self) -> None:
        self.open_connections = 0
        self.active_requests = 0
        self.accepted_connections = 0
        self.requests = 0
        self.disconnects = 0
        self.accept_failures = 0
        self.refusals: Counter[Refusal] = Counter()

    def snapshot(self) -> ServerStatistics:
        return ServerStatistics(
            self.open_connections,
            self.active_requests,
            self.accepted_connections,
            self.requests,
            self.disconnects,
            self.accept_failures,
            MappingProxyType({refusal: self.refusals[refusal] for refusal in Refusal}),
        )
