"""Configure structlog, once, at the start of the program."""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable
from typing import Literal

import structlog

Write = Callable[[str], None]
"""Takes one line, without its end."""


def configure(style: Literal["console", "json"], level: str, file: Write | None = None) -> None:
    """Log to standard error: an event name and key-value pairs, as text or as JSON. With `file`, standard
    error is a terminal on which somebody reads: it gets warnings and errors, and the file gets all."""
    renderer: structlog.typing.Processor = (
        structlog.processors.JSONRenderer()
        if style == "json"
        else structlog.dev.ConsoleRenderer(colors=file is None and sys.stderr.isatty())
    )
    structlog.configure(
        processors=[
            structlog.contextvars.merge_contextvars,
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            structlog.processors.format_exc_info,
            renderer,
        ],
        wrapper_class=structlog.make_filtering_bound_logger(logging.getLevelNamesMapping()[level.upper()]),
        logger_factory=structlog.PrintLoggerFactory(sys.stderr) if file is None else lambda *_: _Parted(file),
        cache_logger_on_first_use=False,
    )


class _Parted:
    """structlog's logger below its levels: a method for each level's name."""

    def __init__(self, file: Write) -> None:
        self._file = file

    def info(self, line: str) -> None:
        self._file(line)

    def warning(self, line: str) -> None:
        self._file(line)
        # The terminal's line may show how far a load is.
        print(f"\r\x1b[K{line}", file=sys.stderr)

    debug = msg = info
    error = critical = exception = fatal = warn = warning
