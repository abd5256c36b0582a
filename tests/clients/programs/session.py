"""A session, as `tests/clients/sessions.py` plays it, and its tools: what each program on it imports."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

PLAIN, READ, EDIT, STORY, ON, ELSEWHERE = json.loads(sys.argv[4])
ENOUGH = "Once upon a time"
"""The client is interrupted when it has as much of the story."""


def sessions() -> Iterator[tuple[str, str, str]]:
    """Yield what each session is to use: both servers' URLs, without a path, and the protocol, where the
    program has several. Its folder is the working one meanwhile."""
    for first in range(1, len(sys.argv), 5):
        here, elsewhere, folder, _, way = sys.argv[first : first + 5]
        os.chdir(folder)
        yield here, elsewhere, way


def read_file(path: str) -> str:
    """Read a file."""
    return Path(path).read_text()


def edit_file(path: str, old: str, new: str) -> str:
    """Replace a text in a file."""
    file = Path(path)
    file.write_text(file.read_text().replace(old, new))
    return "edited"


def called(name: str, arguments: str | dict[str, Any]) -> str:
    known = json.loads(arguments) if isinstance(arguments, str) else arguments
    return {"read_file": read_file, "edit_file": edit_file}[name](**known)


_TEXT = {"type": "string"}
SCHEMAS = {
    "read_file": {"type": "object", "properties": {"path": _TEXT}, "required": ["path"]},
    "edit_file": {
        "type": "object",
        "properties": {"path": _TEXT, "old": _TEXT, "new": _TEXT},
        "required": ["path", "old", "new"],
    },
}


def told(**shown: Any) -> None:
    """Print what the client showed: the answers to PLAIN, READ, EDIT, ON and ELSEWHERE, in turn, and what it
    had of the story, in the session's one line."""
    print(json.dumps(shown))
