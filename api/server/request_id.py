"""What names a request in headers, logs and error bodies: the client's own id where it is one, else ours."""

from __future__ import annotations

import re
import secrets
from collections.abc import Iterable

HEADER = b"x-request-id"
ECHOED_IN = (HEADER, b"request-id")
"""OpenAI's clients read the first, Anthropic's the second."""
MAX_CHARACTERS = 128
_USABLE = re.compile(rb"[A-Za-z0-9._~:/+=@-]{1,%d}" % MAX_CHARACTERS)
"""What can stand in a header, a log line, a label and a URL without a second look. Everything else, a line
break above all, is not cleaned but replaced: half of an id finds nothing."""


def request_id_of(headers: Iterable[tuple[bytes, bytes]]) -> str:
    """`headers` as ASGI has them, names in small letters."""
    given = next((value for name, value in headers if name == HEADER), b"")
    return given.decode("ascii") if _USABLE.fullmatch(given) else new_request_id()


def new_request_id() -> str:
    return f"req_{secrets.token_hex(12)}"


def echoed(request_id: str) -> list[tuple[bytes, bytes]]:
    """The response's headers that tell it. `request_id` is one of ours or one that we took."""
    return [(name, request_id.encode("ascii")) for name in ECHOED_IN]
