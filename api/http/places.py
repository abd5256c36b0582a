"""Count what connections take: places, with which some are served, some more refused, and the rest wait; and
descriptors, of which some are kept for `accept`."""

from __future__ import annotations

import os
from contextlib import suppress
from enum import Enum, auto
from types import TracebackType

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

    def take(self, *, may_serve: bool) -> PlaceKind:
        """Take a place for an accepted connection. Unless `may_serve`, it is a place for a refusal. Several
        listeners that accept at the same moment may each take one more than `most_refused`."""
        if may_serve and self.served < self._most_served:
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


class DescriptorReserve:
    """Holds up to `size` descriptors while it is entered, to have one for `accept` when the process has no
    other: clients in the listen backlog would get no answer for as long as something else holds all of them.
    Holds fewer, without an error, if there are none."""

    def __init__(self, size: int) -> None:
        self._size = size
        self._held: list[int] = []

    def __enter__(self) -> None:
        self.refill()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        while self.release_one():
            pass

    def refill(self) -> bool:
        """Hold `size` descriptors again, and return whether that worked. If not, the connection accepted last
        has taken a spare one."""
        with suppress(OSError):
            while len(self._held) < self._size:
                self._held.append(os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC))
        return len(self._held) == self._size

    def release_one(self) -> bool:
        """Free one descriptor for what is opened next; False if none is held."""
        if not self._held:
            return False
        os.close(self._held.pop())
        return True
