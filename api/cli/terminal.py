"""What commands on a terminal share: text without control characters, a clean end."""

from __future__ import annotations

import re
import signal
import sys
from types import FrameType
from typing import NoReturn

_UNPRINTABLE = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\ud800-\udfff\u202a-\u202e\u2066-\u2069]")


def printable(text: str) -> str:
    """Return text of a model or a client that is safe to show on a terminal: encodable, without control
    characters (so without escape sequences) and without direction overrides. Line breaks and tabs stay."""
    return _UNPRINTABLE.sub(lambda found: "" if found[0] == "\r" else "\N{REPLACEMENT CHARACTER}", text)


def one_line(text: str, columns: int) -> str:
    """Return `printable` text in one line of at most this many characters."""
    line = " ".join(printable(text).split())
    return line if len(line) <= columns else line[: max(0, columns - 1)] + "…"


_TERMINATING = (signal.SIGTERM, signal.SIGHUP)
ENDING = (signal.SIGINT, *_TERMINATING)
"""Signals that end a command. Under trio a task receives them: an exception raised within trio's loop would
break it."""


def exit_code(number: int) -> int:
    """Return the exit code of a command that this signal has ended."""
    return 128 + number


def end_cleanly_when_terminated() -> None:
    """Raise SystemExit on SIGTERM and SIGHUP, so that the terminal is restored and children are ended."""

    def end(number: int, frame: FrameType | None) -> NoReturn:
        sys.exit(exit_code(number))

    for number in _TERMINATING:
        signal.signal(number, end)
