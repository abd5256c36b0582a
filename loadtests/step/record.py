"""What a profiled process leaves behind: a JSON object a line, one for each run of requests."""

from __future__ import annotations

import json
import os
import time
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from loadtests.step.parts import Times

FOLDER_VARIABLE = "STEP_PROFILE_FOLDER"
"""Names the folder that profiles are written to. Without it nothing is profiled."""
ENGINE, SERVER = "engine.jsonl", "server.jsonl"
_COUNTING = "counting"
_POLL_SECONDS = 0.02


@dataclass(slots=True)
class Step:
    """One step of a process. Counts are those of the whole process, all threads together."""

    rows: int = 0
    """Rows that got a token; 0 for a step that did anything else, too."""
    times: Times = field(default_factory=dict)
    faults: int = 0
    waits: int = 0
    lost_cores: int = 0
    model_calls: int | None = None
    other_calls: int | None = None
    operations: int | None = None
    evaluations: int | None = None


@dataclass(slots=True)
class Run:
    """The steps of a run, and stamps of tokens by the clock that all processes have in common."""

    steps: list[Step] = field(default_factory=list)
    sampled: list[tuple[int, int, float]] = field(default_factory=list)
    """Request id, which token of its answer, and when the host had read it from the device."""
    frames: list[tuple[int, float]] = field(default_factory=list)
    """The number of a frame with tokens, and when it was sent, or had been read."""
    carried: list[tuple[int, int, int]] = field(default_factory=list)
    """Request id, which token, and the number of the frame that carried it."""
    texts: list[tuple[int, int]] = field(default_factory=list)
    """Request id, and which of its tokens completed text."""
    written: list[tuple[int, int, float]] = field(default_factory=list)
    """Request id, how many of its tokens the client has been sent, and when."""
    ended: int = 0
    """How many requests ended."""

    def add(self, later: Run) -> None:
        """Append a run: on a busy machine one request may end before the next has come."""
        for name in ("steps", "sampled", "frames", "carried", "texts", "written"):
            getattr(self, name).extend(getattr(later, name))
        self.ended += later.ended


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
    with path.open("a") as file:
        file.write(json.dumps(asdict(run)) + "\n")


def read(path: Path, start: int, requests: int, seconds: float) -> tuple[Run, int]:
    """Return what a process wrote from line `start` on, as soon as this number of requests has ended in it,
    and the next line. Raise TimeoutError."""
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        lines = path.read_text().splitlines(keepends=True) if path.exists() else []
        found = Run()
        for line in lines[start:]:
            if line.endswith("\n"):
                found.add(of(json.loads(line)))
        if found.ended >= requests:
            return found, len(lines)
        time.sleep(_POLL_SECONDS)
    raise TimeoutError(f"{requests} requests did not end in {path.name} within {seconds:g} s")


def of(data: dict[str, Any]) -> Run:
    steps = [
        Step(**{**one, "times": {part: (wall, used) for part, (wall, used) in one["times"].items()}})
        for one in data["steps"]
    ]
    names = ("sampled", "frames", "carried", "texts", "written")
    return Run(steps, **{name: [tuple(one) for one in data[name]] for name in names}, ended=data["ended"])
