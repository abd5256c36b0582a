"""The parts of a step: how long each ran, without those that ran within it.

The product is measured from outside: its functions are replaced by ones that note when they begin and end.
"""

from __future__ import annotations

import functools
import threading
import time
from collections.abc import Callable
from typing import Any

Times = dict[str, tuple[float, float]]
"""Seconds of each part of one step: those that passed, and those of the processor in this thread."""
REST = "rest"
"""What is in no part."""


def replace(owner: Any, name: str, call: Callable[..., Any]) -> None:
    """Let `owner.name` be `call`, which calls what it was before."""
    setattr(owner, name, functools.wraps(getattr(owner, name))(call))


def around(
    owner: Any,
    name: str,
    before: Callable[..., object] = lambda *_, **__: None,
    after: Callable[..., object] = lambda *_, **__: None,
) -> None:
    """Let calls of `owner.name` call `before`, and `after`, whose first argument is what was returned."""
    whole = getattr(owner, name)

    def call(*args: Any, **kwargs: Any) -> Any:
        before(*args, **kwargs)
        result = whole(*args, **kwargs)
        after(result, *args, **kwargs)
        return result

    replace(owner, name, call)


class Parts:
    """The clock of the thread that makes it. Parts may be nested: the time of an inner one is not the outer
    one's. What other threads call is of no part."""

    def __init__(
        self,
        clock: Callable[[], float] = time.monotonic,
        processor: Callable[[], float] = time.thread_time,
    ) -> None:
        self._clock, self._processor = clock, processor
        self._thread = threading.get_ident()
        self._open: list[str] = []
        self._at = clock(), processor()
        self._times: dict[str, list[float]] = {}

    def _pass(self) -> None:
        """Give the time since the last change to the part that is open."""
        now, used = self._clock(), self._processor()
        times = self._times.setdefault(self._open[-1] if self._open else REST, [0.0, 0.0])
        times[0] += now - self._at[0]
        times[1] += used - self._at[1]
        self._at = now, used

    def end_step(self) -> Times:
        """Return the times since the last end."""
        self._pass()
        ended, self._times = self._times, {}
        return {part: (seconds, used) for part, (seconds, used) in ended.items()}

    def measure(self, owner: Any, name: str, part: str) -> None:
        """Let calls of `owner.name` count as this part from now on."""
        whole = getattr(owner, name)

        def measured(*args: Any, **kwargs: Any) -> Any:
            if threading.get_ident() != self._thread:
                return whole(*args, **kwargs)
            self._pass()
            self._open.append(part)
            try:
                return whole(*args, **kwargs)
            finally:
                self._pass()
                self._open.pop()

        replace(owner, name, measured)
