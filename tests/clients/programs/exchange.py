"""What a program tells of one way in which its framework speaks to the server."""

from __future__ import annotations

import json
import sys
from typing import Any

ASK = "What time is it?"
HELLO = "Hello"


def told(way: str, *, chat: str, stream: str, called: Any, answer: str) -> None:
    """`chat` and `stream`: the answer to HELLO, whole and streamed. `called`: the arguments that the tool
    got. `answer`: what came of ASK when the tool's result had been sent back."""
    print(json.dumps({"way": way, "chat": chat, "stream": stream, "called": called, "answer": answer}))


def object_told(way: str, value: Any) -> None:
    """`value`: what came of ASK where an object was asked for."""
    print(json.dumps({"way": way, "object": value}))


def server_url() -> str:
    """The server's, without a path."""
    return sys.argv[1]
