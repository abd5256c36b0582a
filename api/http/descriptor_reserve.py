"""Descriptors held to have one left for accept when the process has no other.

Without it, clients in the listen backlog would get no answer for as long as something else holds all
descriptors.
"""

from __future__ import annotations

import os
from contextlib import suppress
from types import TracebackType


class DescriptorReserve:
    """Holds up to `size` descriptors while it is entered. Fewer, without an error, if there are none."""

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
        """Hold `size` descriptors again, and return whether that worked: if not, what was opened last has
        taken one that belongs here."""
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
