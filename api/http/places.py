"""Count the places that connections take: some are served, some more refused, and the rest wait."""

from __future__ import annotations

from enum import Enum, auto

import trio


class PlaceKind(Enum):
    SERVED = auto()
    REFUSED = auto()
    """Answered 503, and closed."""


class Places:
    """Counts connections of both kinds. A place is free again when its connection is closed."""

    def __init__(self, most_served: int, most_refused: int) -> None:
        self._most_served = most_served
        self._most_refused = most_refused
        self.served = 0
        self.refused = 0
        self._ended = trio.lowlevel.ParkingLot()

    def take(self) -> PlaceKind:
        """Take a place for an accepted connection. Several listeners that accept at the same moment may each
        take one more than `most_refused`."""
        if self.served < self._most_served:
            self.served += 1
            return PlaceKind.SERVED
        self.refused += 1
        return PlaceKind.REFUSED

    def give_back(self, place: PlaceKind) -> None:
        if place is PlaceKind.SERVED:
            self.served -= 1
        else:
            self.refused -= 1
        self._ended.unpark_all()

    async def wait_free(self) -> None:
        """Return when the next connection has a place of one kind."""
        while self.refused >= self._most_refused and self.served >= self._most_served:
            await self._ended.park()

    async def wait_end(self) -> None:
        """Return when a connection has ended."""
        await self._ended.park()
