"""The steps of one process, with what is counted in each: Python calls, and what the kernel did for it."""

from __future__ import annotations

import resource
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import CodeType, FrameType

from loadtests.step.parts import Parts
from loadtests.step.record import Run, Step

_OWN = str(Path(__file__).parent)
"""What measures is not counted."""


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
        self._used = (0, 0)

    def begin(self, counting: bool) -> None:
        """Begin the first step of a run."""
        self.run, self._counting = Run(), counting
        self._next()

    def end(self) -> None:
        """End a step, in which `rows` rows got a token, and begin the next one."""
        sys.setprofile(None)
        used = _usage()
        faults, waits = (now - was for now, was in zip(used, self._used, strict=True))
        counts = {"page faults": faults, "waits of threads": waits}
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
        self._used = _usage()


def _usage() -> tuple[int, int]:
    """Return page faults without reading a disk, and waits of threads (voluntary context switches), of the
    whole process."""
    own = resource.getrusage(resource.RUSAGE_SELF)
    return own.ru_minflt, own.ru_nvcsw
