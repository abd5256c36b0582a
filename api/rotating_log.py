"""A log of bounded size: of `serve` on a terminal, and for launchd (`cli/service.py`), which only appends to
one file; newsyslog serves no user's agents.

The program writes every line itself, so it can begin a new file between two lines, and loses none.
"""

from __future__ import annotations

import atexit
import os
import sys
import threading
from io import FileIO, TextIOWrapper
from pathlib import Path

_MODE = 0o600


class RotatingLog:
    """A log to which `write` appends whole lines. The newest file is `path`, older ones are `path.1`,
    `path.2`, ...; none is larger than `most_bytes` or one write."""

    def __init__(self, path: Path, most_bytes: int, files: int) -> None:
        """`files` is the number of files to keep, at least 2, including `path`. Raise OSError."""
        self.path = path
        self._most_bytes = most_bytes
        self._files = files
        path.parent.mkdir(parents=True, exist_ok=True)
        self._file = self._open()

    def write(self, lines: bytes) -> None:
        """Append lines. If the disk is full they are lost, but the service goes on."""
        try:
            if self._file.tell() + len(lines) > self._most_bytes and self._file.tell():
                self._rotate()
            self._file.write(lines)
        except OSError as error:
            print(f"penstock: cannot write {self.path}: {error}", file=sys.stderr)

    def write_line(self, text: str) -> None:
        """Append a line, given without its end."""
        self.write(f"{text}\n".encode("utf-8", "replace"))

    def close(self) -> None:
        self._file.close()

    def _open(self) -> FileIO:
        descriptor = os.open(self.path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, _MODE)
        file = FileIO(descriptor, "a")
        file.seek(0, os.SEEK_END)
        return file

    def _rotate(self) -> None:
        self._file.close()
        try:
            for number in range(self._files - 1, 0, -1):
                older = self.path if number == 1 else self._numbered(number - 1)
                if older.exists():
                    older.replace(self._numbered(number))
        finally:
            self._file = self._open()

    def _numbered(self, number: int) -> Path:
        return self.path.with_name(f"{self.path.name}.{number}")


_MOST_LINE_BYTES = 64 * 1024
_LAST_OUTPUT_SECONDS = 5.0
"""Bound on the wait for the last output: an engine that outlives the server for a moment holds the pipe."""


def print_into(log: RotatingLog) -> None:
    """Redirect all that this process and its children print to the log, until the process has ended."""
    read, write = os.pipe()
    _print_to(write)
    os.close(write)
    pump = threading.Thread(target=_pump, args=(read, log), daemon=True)
    pump.start()

    def end() -> None:
        nowhere = os.open(os.devnull, os.O_WRONLY)
        _print_to(nowhere)
        os.close(nowhere)
        pump.join(_LAST_OUTPUT_SECONDS)

    atexit.register(end)


def _print_to(descriptor: int) -> None:
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, TextIOWrapper):
            stream.reconfigure(line_buffering=True)
        stream.flush()
        os.dup2(descriptor, stream.fileno())


def _pump(read: int, log: RotatingLog) -> None:
    """Copy whole lines from the pipe to the log, so that each new file begins with a whole line."""
    left = b""
    with open(read, "rb", buffering=0) as printed:
        while data := printed.read(_MOST_LINE_BYTES):
            whole, newline, left = (left + data).rpartition(b"\n")
            if len(left) > _MOST_LINE_BYTES:
                whole, newline, left = whole + newline + left, b"\n", b""
            if newline:
                log.write(whole + newline)
    if left:
        log.write(left + b"\n")
