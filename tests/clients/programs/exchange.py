"""The report of a program on one protocol of its framework."""

from __future__ import annotations

import json
import sys
from typing import Any

ASK = "What time is it?"
HELLO = "Hello"


def told(way: str, *, chat: str, stream: str, called: Any, answer: str) -> None:
    """`chat` and `stream`: the answer to HELLO, whole and streamed. `called`: the arguments that the tool
    got. `answer`: the answer to ASK after the tool's result was sent back."""
    print(json.dumps({"way": way, "chat": chat, "stream": stream, "called": called, "answer": answer}))


def object_told(way: str, value: Any) -> None:
    """`value`: the answer to ASK with a requested object."""
    print(json.dumps({"way": way, "object": value}))


def server_url() -> str:
    """The server's, without a path."""
    return sys.argv[1]
