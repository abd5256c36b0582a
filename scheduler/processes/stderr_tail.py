"""A child process's stderr, line by line: to our log, and the last lines for the cause of death."""

from __future__ import annotations

import logging
from collections import deque

import structlog

_log = structlog.get_logger("engine")
_LINES_KEPT = 400
"""Enough for a deep traceback with its header, which is needed to find the exception line, and for the stacks
of all threads that faulthandler writes behind a device's last words: six lines for one that waits."""
_LINE_BYTES = 8192
"""Bound on a line that never ends."""


class StderrTail:
    """Fed with bytes in pieces of any size. `event`, `level`: of each line in the log; `fields`: beside
    it."""

    def __init__(self, event: str = "engine_stderr", level: int = logging.INFO, **fields: str) -> None:
        self._event, self._level = event, level
        self._kept: deque[str] = deque(maxlen=_LINES_KEPT)
        self._pending = b""
        self._fields = fields

    @property
    def lines(self) -> tuple[str, ...]:
        """Return the last lines."""
        return tuple(self._kept)

    def feed(self, data: bytes | bytearray) -> None:
        *lines, pending = (self._pending + data).split(b"\n")
        for line in lines:
            self._relay(line)
        self._pending = pending[-_LINE_BYTES:]

    def end(self) -> None:
        """Nothing follows: what is left is a line, too."""
        self._relay(self._pending)
        self._pending = b""

    def _relay(self, line: bytes) -> None:
        text = line.decode("utf-8", "replace").rstrip()
        if text:
            self._kept.append(text)
            _log.log(self._level, self._event, line=text, **self._fields)
