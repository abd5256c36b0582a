"""What the units start, `penstock service run`: `serve` in this process, with the variables of the
environment file, and under launchd with a log that keeps its size."""

from __future__ import annotations

import atexit
import os
import sys
import threading
from collections.abc import Sequence
from io import TextIOWrapper
from pathlib import Path
from typing import NoReturn

from api.cli.errors import OperatorError
from api.cli.join import engine
from api.cli.service import environment_file
from api.cli.service.rotating_log import RotatingLog
from api.cli.service.serve_arguments import checked

_MOST_LINE_BYTES = 64 * 1024
_LAST_OUTPUT_SECONDS = 5.0
"""An engine that outlives the server for a moment holds the pipe open."""


def run(environment: Path, arguments: Sequence[str]) -> None:
    """Serve. Raise what `serve` does, and OperatorError for an environment file that cannot be used."""
    os.environ.update(environment_file.read(environment))
    settings = checked(arguments, dict(os.environ))
    # Imported here, because a refused option does not need it and it takes seconds.
    from api import serving

    serving.serve(settings)


def join(environment: Path, arguments: Sequence[str]) -> NoReturn:
    """Be an engine for a server elsewhere. Raise OperatorError and what `penstock engine` does."""
    os.environ.update(environment_file.read(environment))
    engine.main(list(arguments), prog_name="penstock engine", standalone_mode=False)
    raise AssertionError("the engine took this process's place")


def print_into(log: RotatingLog) -> None:
    """Write all that this process and its children print to the log, until the process has ended."""
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


def open_log(path: Path, most_bytes: int, files: int) -> RotatingLog:
    """Raise OperatorError."""
    try:
        return RotatingLog(path, most_bytes, files)
    except OSError as error:
        raise OperatorError(f"cannot write {path}: {error}") from error


def _print_to(descriptor: int) -> None:
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, TextIOWrapper):
            stream.reconfigure(line_buffering=True)
        stream.flush()
        os.dup2(descriptor, stream.fileno())


def _pump(read: int, log: RotatingLog) -> None:
    """Write whole lines, so that a new file begins with one."""
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
