"""Configure structlog, once, at the start of the program."""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, Literal

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
            renderer if file is None else partial(_parted, renderer),
        ],
        wrapper_class=structlog.make_filtering_bound_logger(logging.getLevelNamesMapping()[level.upper()]),
        logger_factory=structlog.PrintLoggerFactory(sys.stderr) if file is None else lambda *_: _Parted(file),
        cache_logger_on_first_use=False,
    )


_SENTENCES: Mapping[str, str] = {
    "no_api_keys": "open       everyone who can reach {host} can use this server: set --api-key",
    "engine_died": "restarting the engine {exit} ({reason}); the next one starts in {restart_in_seconds:g} s",
}
"""What a terminal shows in place of a line of the log."""


def _parted(
    renderer: structlog.typing.Processor, logger: Any, level: str, event: structlog.typing.EventDict
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Return the line for the file, and what a terminal shows."""
    sentence = _SENTENCES.get(event["event"], "").format_map(event)
    line = renderer(logger, level, event)
    return (line, sentence or line), {}


class _Parted:
    """structlog's logger below its levels: a method for each level's name."""

    def __init__(self, file: Write) -> None:
        self._file = file

    def info(self, line: str, sentence: str) -> None:
        self._file(line)

    def warning(self, line: str, sentence: str) -> None:
        self._file(line)
        # The terminal's line may show how far a load is.
        print(f"\r\x1b[K{sentence}", file=sys.stderr)

    debug = msg = info
    error = critical = exception = fatal = warn = warning
