"""Work off the event loop, in lanes: what may take longer than a millisecond."""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum, auto
from typing import Protocol, TypeVar

_T = TypeVar("_T")


class Lane(Enum):
    """Work waits only for work of the same lane."""

    PLAIN = auto()
    """Validation, templates, tokenizing: at most about 100 ms."""
    LARGE = auto()
    """The same for inputs that take hundreds of megabytes of memory: one at a time."""
    ANSWER = auto()
    """Reading a part of an answer that takes long: one at a time."""
    GRAMMAR = auto()
    """Compiling a grammar that is not cached: one per tenant at a time."""


class Offload(Protocol):
    """Runs work in a thread, or in place in tests (a virtual clock would jump while a thread works).

    Within a lane tenants are served round robin.
    """

    async def __call__(
        self, work: Callable[[], _T], /, *, tenant: str = "", lane: Lane = Lane.PLAIN
    ) -> _T: ...
