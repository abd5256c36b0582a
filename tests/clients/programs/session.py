"""A session, as `tests/clients/sessions.py` plays it, and its tools: what each program on it imports."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, Protocol

HERE, THERE = 0, 1
"""Which of the two servers a session asks."""
_ENOUGH = "Once upon a time"
"""The client is interrupted when it has as much of the story."""


class Session(Protocol):
    """A client with the history that it keeps, or that its program keeps for it."""

    async def whole(self, question: str) -> str:
        """Ask the first server without a stream."""

    async def ask(self, question: str, server: int) -> str:
        """Stream, and send the results of tools back until the answer calls none."""

    async def interrupted(self, question: str) -> str:
        """Leave the first server's stream when `has_enough`, and return what was had of it."""


async def play(session_of: Callable[[tuple[str, str], str], Session], version: str) -> None:
    """Have every session that is given, and print a line of what its client showed. `session_of`: of both
    servers' URLs, without a path, and the protocol; its folder is the working one meanwhile."""
    for first in range(1, len(sys.argv), 5):
        here, elsewhere, folder, questions, way = sys.argv[first : first + 5]
        os.chdir(folder)
        plain, read, edit, story, on, last = json.loads(questions)
        session = session_of((here, elsewhere), way)
        answers = [await session.whole(plain), await session.ask(read, HERE), await session.ask(edit, HERE)]
        had = await session.interrupted(story)
        answers += [await session.ask(on, HERE), await session.ask(last, THERE)]
        print(json.dumps({"version": version, "answers": answers, "had": had}))


def has_enough(had: str) -> bool:
    return _ENOUGH in had


def beginning(texts: Iterable[str]) -> str:
    had = ""
    for text in texts:
        had += text
        if has_enough(had):
            break
    return had


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


def _schema(*names: str) -> dict[str, Any]:
    return {
        "type": "object",
        "properties": {name: {"type": "string"} for name in names},
        "required": [*names],
    }


SCHEMAS = {"read_file": _schema("path"), "edit_file": _schema("path", "old", "new")}
