"""A session, as `tests/clients/sessions.py` plays it, and its tools: what each program on it imports."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

HERE, ELSEWHERE_URL, FOLDER = sys.argv[1], sys.argv[2], Path(sys.argv[3])
"""The servers' URLs without a path, and the folder of the file."""
PLAIN, READ, EDIT, STORY, ON, ELSEWHERE = json.loads(sys.argv[4])
WAY = sys.argv[5]
"""The protocol, where a program has several: chat, responses, messages."""
ENOUGH = "Once upon a time"
"""The client is interrupted when it has as much of the story."""


def read_file(path: str) -> str:
    """Read a file."""
    return (FOLDER / path).read_text()


def edit_file(path: str, old: str, new: str) -> str:
    """Replace a text in a file."""
    file = FOLDER / path
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
    had of the story, in the one line of the program."""
    print(json.dumps(shown))
