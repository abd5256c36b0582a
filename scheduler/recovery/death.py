"""Why an engine's life was over, read from what it left behind: its stderr and its exit status. Pure.

A Metal error ends the process from inside a completion handler: no Python code runs any more, and what
libc++abi wrote to stderr is all there is.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from scheduler.statistics import DeathCause


@dataclass(frozen=True, slots=True)
class Death:
    """`telling` is the line of its stderr that says why, if one does."""

    cause: DeathCause
    telling: str | None = None


# The texts of Metal's completion handler and of MLX's allocators, whatever stands around them.
_METAL = "kIOGPUCommandBufferCallbackError"
_MARKS = (
    (DeathCause.BUFFER_LIMIT, re.compile(r"malloc\w*\] Resource limit")),
    (
        DeathCause.OUT_OF_MEMORY,
        re.compile(
            rf"{_METAL}OutOfMemory|malloc\w*\] (?:Attempting|Unable) to allocate"
            r"|^MemoryError\b|std::bad_alloc|cudaErrorMemoryAllocation|CUDA\b.*out of memory"
        ),
    ),
    (
        DeathCause.GPU_TIMEOUT,
        re.compile(rf"{_METAL}(?:Timeout|Hang|ImpactingInteractivity)|Caused GPU (?:Timeout|Hang) Error"),
    ),
    (DeathCause.GPU_ERROR, re.compile(rf"{_METAL}|\[METAL\] Command buffer|cudaError\w+")),
)
_TRACEBACK = "Traceback (most recent call last):"


def read_stderr(lines: Sequence[str], returncode: int | None) -> Death:
    """What a process that nobody ended on purpose died of, by its last `lines` and its exit status (negative
    for a signal). The latest line that tells something decides: what was survived stands above."""
    for line in reversed(lines):
        for cause, mark in _MARKS:
            if mark.search(line):
                return Death(cause, line.strip())
    if (exception := _last_exception(lines)) is not None:
        return Death(DeathCause.FAULT, exception)
    return Death(DeathCause.KILLED if returncode is not None and returncode < 0 else DeathCause.EXIT)


def conclude(seen: DeathCause, lines: Sequence[str], returncode: int | None) -> Death:
    """`seen` is what the supervisor knows: how the talk with the engine came to its end. What we did to it
    ourselves stays so; of the rest, memory and the device tell more than that it ended, and when."""
    read = read_stderr(lines, returncode)
    match seen:
        case DeathCause.EXIT:
            return read
        case DeathCause.FAULT | DeathCause.START:
            named = read.cause in {cause for cause, _ in _MARKS}
            return read if named else Death(seen, read.telling)
        case _:
            return Death(seen)


def _last_exception(lines: Sequence[str]) -> str | None:
    """The line that names the exception, under the last traceback: the first that is not indented."""
    starts = [place for place, line in enumerate(lines) if line.strip() == _TRACEBACK]
    if not starts:
        return None
    return next((line.strip() for line in lines[starts[-1] + 1 :] if line[:1] not in ("", " ")), None)
