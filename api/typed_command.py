"""How this program is typed where it was started: after `make serve` no PATH leads to it."""

from __future__ import annotations

import os
import shlex
import shutil
import sys


def typed() -> str:
    """Return its name if PATH leads to it, else its path."""
    started = sys.argv[0]
    if os.path.basename(started) != "penstock" or shutil.which("penstock") == os.path.abspath(started):
        return "penstock"
    return shlex.quote(os.path.relpath(started))


def with_typed(text: str) -> str:
    """Return text whose commands in backticks can be typed."""
    return text.replace("`penstock ", f"`{typed()} ")
