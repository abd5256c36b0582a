"""The parts of a measurement: what each may take, how they are contained, and what is kept of a cut run.

One process carries out the parts in order and writes a line for each finding. If it ends, or a part takes
more than its time, that is a finding, too, and another process goes on behind it. No MLX is imported here.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from loadtests.device.finding import DeviceReport, Finding, Section
from loadtests.processes import tree

SECONDS: Mapping[str, float] = {
    "operations": 75,
    "branches": 120,
    "zoo": 180,
    "server": 120,
    "large": 180,
    "steps": 120,
    "memory": 120,
}
"""Most seconds of each part, in order of worth."""
_POLL_SECONDS = 0.2
_FORGOTTEN = "not begun: the time was over"


def begin(record: Path, part: str, title: str, expected: str) -> None:
    _write(record, {"begin": part, "title": title, "expected": expected})


def note(record: Path, finding: Finding) -> None:
    _write(record, {"finding": asdict(finding)})


def end(record: Path, part: str) -> None:
    _write(record, {"end": part})


def describe(record: Path, machine: Mapping[str, Any]) -> None:
    _write(record, {"machine": dict(machine)})


def _write(record: Path, line: dict[str, Any]) -> None:
    with record.open("a", encoding="utf-8") as file:
        # Behind a line that a process was killed in, too.
        file.write("\n" + json.dumps(line) + "\n")


@dataclass(slots=True)
class Record:
    """What a record says so far. `current`: the part that has begun and not ended."""

    machine: dict[str, Any]
    sections: list[Section]
    ended: list[str]
    current: str | None = None

    @classmethod
    def read(cls, path: Path) -> Record:
        found = cls({}, [], [])
        lines = path.read_text("utf-8").splitlines() if path.exists() else []
        for line in lines:
            with suppress(ValueError):  # The last line of a process that was killed.
                found._add(json.loads(line))
        return found

    def _add(self, line: dict[str, Any]) -> None:
        match line:
            case {"begin": part, "title": title, "expected": expected}:
                self.current = part
                self.sections.append(Section(title, expected, ()))
            case {"finding": finding}:
                last = self.sections[-1]
                self.sections[-1] = Section(last.title, last.expected, (*last.findings, Finding(**finding)))
            case {"end": part}:
                self.current = None
                self.ended.append(part)
            case {"machine": machine}:
                self.machine = machine


@dataclass(frozen=True, slots=True)
class Measurement:
    """One run of these parts. `command` carries out the parts whose names are appended to it, and writes into
    `record`; `seconds` bounds all."""

    command: Sequence[str]
    environment: Mapping[str, str]
    out: Path
    model: str
    quick: bool
    seconds: float
    limits: Mapping[str, float]

    @property
    def record(self) -> Path:
        return self.out / "device.jsonl"

    def run(self, go_on: bool = False) -> DeviceReport:
        """Carry out the parts, and write the report behind each finding. `go_on`: without those that an
        earlier run has in the same folder."""
        self.out.mkdir(parents=True, exist_ok=True)
        if not go_on:
            self.record.unlink(missing_ok=True)
        started = time.monotonic()
        deadline = started + self.seconds
        while todo := [part for part in self.limits if part not in Record.read(self.record).ended]:
            if time.monotonic() >= deadline:
                for part in todo:
                    self._closed(part, Finding(part, "measured", detail=_FORGOTTEN))
                break
            self._process(todo, started, deadline)
        return self._reported(started)

    def _process(self, todo: Sequence[str], started: float, deadline: float) -> None:
        """Run one process until it ends, or a part of it takes too long."""
        process = subprocess.Popen([*self.command, *todo], env=dict(self.environment), start_new_session=True)
        part, since, size = None, time.monotonic(), -1
        try:
            while process.poll() is None:
                found = Record.read(self.record)
                if found.current != part:
                    part, since = found.current, time.monotonic()
                if (written := self.record.stat().st_size if self.record.exists() else 0) != size:
                    size = written
                    self._reported(started)
                limit = min(since + self.limits[part or todo[0]], deadline)
                if time.monotonic() > limit:
                    _kill(process)
                    self._failed(todo, f"not done after {time.monotonic() - since:.0f} s")
                    return
                with suppress(subprocess.TimeoutExpired):
                    process.wait(_POLL_SECONDS)
        finally:
            _kill(process)
        if process.returncode or Record.read(self.record).current:
            self._failed(todo, f"the process ended with {process.returncode}")

    def _failed(self, todo: Sequence[str], cause: str) -> None:
        found = Record.read(self.record)
        part = found.current or next((part for part in todo if part not in found.ended), None)
        if part is not None:
            self._closed(part, Finding(part, "raised", detail=cause), found.current is None)

    def _closed(self, part: str, finding: Finding, begins: bool = True) -> None:
        if begins:
            begin(self.record, part, part.capitalize(), "")
        note(self.record, finding)
        end(self.record, part)

    def _reported(self, started: float) -> DeviceReport:
        found = Record.read(self.record)
        sections = tuple(found.sections)
        made = DeviceReport(found.machine, self.model, self.quick, time.monotonic() - started, sections)
        made.write(self.out)
        return made


def _kill(process: subprocess.Popen[bytes]) -> None:
    """End it and what it has started, which may be groups of their own."""
    if process.poll() is None:
        for pid in reversed(tree(process.pid)):
            with suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL)
    process.wait()
