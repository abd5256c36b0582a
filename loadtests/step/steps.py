"""The steps of one process, measured from outside: the time of each part, and what is counted in each step.

The product's functions are replaced by ones that note when they begin and end. A profiled process sends each
run of requests to the command that measures.
"""

from __future__ import annotations

import functools
import os
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from multiprocessing.connection import Client, Connection
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

Times = dict[str, tuple[float, float]]
"""Seconds of each part of one step: those that passed, and those of the processor in this thread."""
REST = "rest"
"""What is in no part."""
ADDRESS_VARIABLE = "STEP_PROFILE_ADDRESS"
"""Names the socket of the command that measures. Without it nothing is profiled."""
_OWN = str(Path(__file__).parent)
"""What measures is not counted."""


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


@dataclass(slots=True)
class Calls:
    """Calls of Python functions: those of the model's, and what it calls, and all others."""

    model: int = 0
    others: int = 0


def _count(found: Calls, inside: Callable[[CodeType], bool]) -> None:
    depth = 0

    def look(frame: FrameType, event: str, _: object) -> None:
        nonlocal depth
        if event == "call":
            depth += inside(frame.f_code)
            if depth:
                found.model += 1
            elif not frame.f_code.co_filename.startswith(_OWN):
                found.others += 1
        elif event == "return":
            depth -= inside(frame.f_code)

    sys.setprofile(look)


@contextmanager
def counted_calls(inside: Callable[[CodeType], bool]) -> Iterator[Calls]:
    """Count the calls of this thread. `inside`: whether a function is the model's."""
    found = Calls()
    _count(found, inside)
    try:
        yield found
    finally:
        sys.setprofile(None)


@dataclass(frozen=True, slots=True)
class Step:
    """One step of a process. `rows` got a token; 0 for a step that did anything else, too."""

    rows: int
    times: Times
    counts: dict[str, int] = field(default_factory=dict)


@dataclass(slots=True)
class Run:
    """The steps until no request was left, and how many requests ended."""

    steps: list[Step] = field(default_factory=list)
    ended: int = 0


class Steps:
    """The steps of the thread that makes it. A run that counts takes calls in one step and graphs in the
    next: neither count is of the other's work."""

    def __init__(self) -> None:
        self.parts, self.run, self.rows = Parts(), Run(), 0
        self.model: CodeType | None = None
        """The function that is the model's step."""
        self.graphs: Counter[str] | None = None
        self.counts_graphs = self._counting = False
        self._calls: Calls | None = None

    def begin(self, counting: bool) -> None:
        """Begin the first step of a run."""
        self.run, self._counting = Run(), counting
        self._next()

    def end(self) -> None:
        """End a step, in which `rows` rows got a token, and begin the next one."""
        sys.setprofile(None)
        counts: dict[str, int] = {}
        if self._calls is not None:
            counts["Python calls"] = self._calls.others
            if self.model is not None:
                counts["Python calls in the model"] = self._calls.model
        elif self.counts_graphs and self.graphs is not None:
            counts |= self.graphs
        self.run.steps.append(Step(self.rows, self.parts.end_step(), counts))
        self._next()

    def rest(self) -> None:
        """Count nothing until the next run."""
        sys.setprofile(None)
        self.counts_graphs, self._calls = False, None

    def _next(self) -> None:
        self.rest()
        self.parts.end_step()
        self.rows = 0
        if self._counting and len(self.run.steps) % 2 == 0:
            self._calls = Calls()
            _count(self._calls, lambda code: code is self.model)
        elif self._counting and self.graphs is not None:
            self.graphs.clear()
            self.counts_graphs = True


class Report:
    """A profiled process's way to the command that measures, which says what the next run is for: times, or
    counts, which cost time."""

    def __init__(self, process: str) -> None:
        self._link = Client(os.environ[ADDRESS_VARIABLE])
        self._link.send(process)
        self._counting = False

    def is_counting(self) -> bool:
        while self._link.poll():
            self._counting = self._link.recv()
        return self._counting

    def send(self, run: Run) -> None:
        self._link.send(run)


def take(link: Connection, requests: int, seconds: float) -> Run:
    """Return what a process reports until this number of requests has ended in it: on a busy machine one may
    end before the next has come, in a run of its own. Raise TimeoutError."""
    found = Run()
    while found.ended < requests:
        if not link.poll(seconds):
            raise TimeoutError(f"{requests} requests did not end within {seconds:g} s")
        run: Run = link.recv()
        found.steps += run.steps
        found.ended += run.ended
    return found
