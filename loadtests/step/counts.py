"""Counts of one step that the machine's load hardly changes: Python calls, and what the kernel did for the
process."""

from __future__ import annotations

import resource
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import CodeType, FrameType
from typing import TypeAlias

_OWN = str(Path(__file__).parent)
"""What measures is not counted."""
Usage: TypeAlias = tuple[int, int, int]
"""Page faults without reading a disk, waits of its threads (voluntary context switches), and how often they
lost their core (involuntary ones)."""


def usage() -> Usage:
    """Return what the kernel counts of this process, all threads together."""
    own = resource.getrusage(resource.RUSAGE_SELF)
    return own.ru_minflt, own.ru_nvcsw, own.ru_nivcsw


@dataclass(slots=True)
class Calls:
    """Calls of Python functions: those of the model's, and what it calls, and all others."""

    model: int = 0
    others: int = 0


@contextmanager
def counted_calls(inside: Callable[[CodeType], bool]) -> Iterator[Calls]:
    """Count the calls of this thread. `inside`: whether a function is the model's."""
    found = Calls()
    stop = start_counting(found, inside)
    try:
        yield found
    finally:
        stop()


def start_counting(found: Calls, inside: Callable[[CodeType], bool]) -> Callable[[], None]:
    """Count the calls of this thread into `found`. Return what ends that."""
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
    return lambda: sys.setprofile(None)
