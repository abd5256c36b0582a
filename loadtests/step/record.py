"""What a profiled process leaves behind for each run of requests: its steps, and stamps of their tokens."""

from __future__ import annotations

import os
import pickle
import time
from collections import defaultdict
from dataclasses import dataclass, field
from pathlib import Path

from loadtests.step.parts import Times

FOLDER_VARIABLE = "STEP_PROFILE_FOLDER"
"""Names the folder that profiles are written to. Without it nothing is profiled."""
ENGINE, SERVER, _COUNTING = "engine", "server", "counting"
_POLL_SECONDS = 0.02


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


def folder() -> Path | None:
    found = os.environ.get(FOLDER_VARIABLE)
    return Path(found) if found else None


def order(where: Path, counting: bool) -> None:
    """Say what the next run is for: counts, which cost time, or times."""
    mark = where / _COUNTING
    mark.touch() if counting else mark.unlink(missing_ok=True)


def is_counting(where: Path) -> bool:
    return (where / _COUNTING).exists()


def append(path: Path, run: Run) -> None:
    with path.open("ab") as file:
        pickle.dump(run, file)


def take(path: Path, requests: int, seconds: float) -> Run:
    """Return what a process wrote, as soon as this number of requests has ended in it: on a busy machine one
    may end before the next has come, in a run of its own. Raise TimeoutError."""
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        found = Run()
        try:
            with path.open("rb") as file:
                while True:
                    run: Run = pickle.load(file)
                    found.steps += run.steps
                    found.ended += run.ended
                    for name, stamps in run.stamps.items():
                        found.stamps[name] += stamps
        except (FileNotFoundError, EOFError, pickle.UnpicklingError):
            pass
        if found.ended >= requests:
            path.unlink()
            return found
        time.sleep(_POLL_SECONDS)
    raise TimeoutError(f"{requests} requests did not end in the {path.name} within {seconds:g} s")
