"""What a download shows of itself: bars on a terminal, elsewhere a line now and then."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Protocol

import click
from rich.console import Console
from rich.progress import (
    BarColumn,
    DownloadColumn,
    Progress,
    TaskID,
    TextColumn,
    TimeRemainingColumn,
    TransferSpeedColumn,
)

from scheduler.shared.gigabytes import gigabytes

_LINE_SECONDS = 10.0
_NAME_COLUMNS = 28


class ComingFile(Protocol):
    """A file that comes."""

    @property
    def path(self) -> str: ...

    @property
    def nbytes(self) -> int: ...


class DownloadProgress:
    """Receives the progress of a download. This base class shows nothing."""

    def begin(self, file: ComingFile, have_bytes: int) -> None: ...

    def advance(self, file: ComingFile, nbytes: int) -> None:
        """Take `nbytes` more, a negative number if bytes that were there are thrown away."""

    def done(self, file: ComingFile) -> None: ...

    def note(self, text: str) -> None: ...


class ProgressLines(DownloadProgress):
    """Progress without a terminal: a line for each large file, and one every ten seconds with the rate since
    the last."""

    def __init__(self, total_bytes: int, say: Callable[[str], None], now: Callable[[], float]) -> None:
        self._say, self._now = say, now
        self._total_bytes, self._had_bytes, self._reported = total_bytes, 0, (now(), 0)

    def begin(self, file: ComingFile, have_bytes: int) -> None:
        self._had_bytes += have_bytes
        self._reported = (self._reported[0], self._reported[1] + have_bytes)
        if have_bytes:
            self._say(f"{file.path}: goes on at {gigabytes(have_bytes)} of {gigabytes(file.nbytes)}")

    def advance(self, file: ComingFile, nbytes: int) -> None:
        self._had_bytes += nbytes
        at, had_bytes = self._reported
        if (seconds := self._now() - at) >= _LINE_SECONDS:
            rate = max(0, self._had_bytes - had_bytes) / seconds
            done = f"{gigabytes(self._had_bytes)} of {gigabytes(self._total_bytes)}"
            self._say(f"{done}, {gigabytes(int(rate))}/s")
            self._reported = (self._now(), self._had_bytes)

    def done(self, file: ComingFile) -> None:
        if file.path.endswith(".safetensors"):
            self._say(f"{file.path}: {gigabytes(file.nbytes)}, checksum right")

    def note(self, text: str) -> None:
        self._say(text)


class _Bars(DownloadProgress):
    """Progress on a terminal: a bar for each file that comes, and one for all of them."""

    def __init__(self, progress: Progress, total_bytes: int) -> None:
        self._progress = progress
        self._all = progress.add_task("all", total=total_bytes)
        self._of: dict[str, TaskID] = {}

    def begin(self, file: ComingFile, have_bytes: int) -> None:
        name = file.path if len(file.path) <= _NAME_COLUMNS else f"…{file.path[1 - _NAME_COLUMNS :]}"
        self._of[file.path] = self._progress.add_task(name, total=file.nbytes, completed=have_bytes)
        self._progress.advance(self._all, have_bytes)

    def advance(self, file: ComingFile, nbytes: int) -> None:
        self._progress.advance(self._of[file.path], nbytes)
        self._progress.advance(self._all, nbytes)

    def done(self, file: ComingFile) -> None:
        self._progress.remove_task(self._of.pop(file.path))

    def note(self, text: str) -> None:
        self._progress.console.print(text, highlight=False)


def _console() -> Console:
    """Return a console whose lines leave room for the terminal's echo of Ctrl-C, which would break them."""
    console = Console(stderr=True)
    console.width = max(20, console.width - 2)
    return console


@contextmanager
def shown_progress(total_bytes: int) -> Iterator[DownloadProgress]:
    """Show on standard error what is reported to the yielded object."""
    console = _console()
    if not console.is_terminal:
        yield ProgressLines(total_bytes, lambda text: click.echo(text, err=True), time.monotonic)
        return
    columns = (
        TextColumn("{task.description}"),
        BarColumn(bar_width=None),
        DownloadColumn(),
        TransferSpeedColumn(),
        TimeRemainingColumn(compact=True),
    )
    with Progress(*columns, console=console, transient=True) as progress:
        yield _Bars(progress, total_bytes)
