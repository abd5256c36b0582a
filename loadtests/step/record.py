"""What a profiled process leaves behind for each run of requests: its steps, and stamps of their tokens."""

from __future__ import annotations

import os
from collections import defaultdict
from dataclasses import dataclass, field
from multiprocessing.connection import Client, Connection

from loadtests.step.parts import Times

ADDRESS_VARIABLE = "STEP_PROFILE_ADDRESS"
"""Names the socket of the command that measures. Without it nothing is profiled."""


@dataclass(frozen=True, slots=True)
class Step:
    """One step of a process. `rows` got a token; 0 for a step that did anything else, too. Counts have their
    names in the table."""

    rows: int
    times: Times
    counts: dict[str, int] = field(default_factory=dict)


@dataclass(slots=True)
class Run:
    steps: list[Step] = field(default_factory=list)
    stamps: defaultdict[str, list[tuple[int, int, float]]] = field(default_factory=lambda: defaultdict(list))
    """Request id, which token of its answer, and when, by the clock that all processes have in common: it was
    "sampled" (read from the device) and "sent" by the engine, "parsed" by the server, completed a "text", and
    was "written"."""
    ended: int = 0
    """How many requests ended."""


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
        for name, stamps in run.stamps.items():
            found.stamps[name] += stamps
    return found
