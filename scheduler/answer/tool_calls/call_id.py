"""The ids of tool calls, for models that write none themselves."""

from __future__ import annotations

from hashlib import sha256

_ALPHABET = "0123456789abcdefghijklmnopqrstuvwxyz"


def call_id(place: str, *, short: bool) -> str:
    """Always the same for one `place` (request, choice and number): an answer that is computed again
    calls by the same ids. `short`: nine letters and digits."""
    digest = sha256(place.encode("utf-8", "backslashreplace")).digest()
    if short:
        return "".join(_ALPHABET[byte % len(_ALPHABET)] for byte in digest[:9])
    return "call_" + digest[:12].hex()
