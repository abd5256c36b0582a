"""Decode clients' JSON text strictly and within bounds that are checked before any value is made.

Python's own parser accepts NaN and lone surrogates, which are not JSON and which no template, tokenizer or
log can encode. A deeply nested value can cause a recursion error wherever code walks it. A short text can
contain many values: `[],` is 3 bytes of text and 64 bytes of list.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import msgspec

MAX_NESTING = 64
"""Nesting of objects and lists. Tool schemas, the deepest that clients send, stay below 30."""
MAX_CONTAINERS = 1 << 16
"""Objects and lists together. Each becomes at most 2.5 KB (a validated message), so all become 160 MB."""
MAX_MEMBERS = 1 << 18
"""Members of all objects together, counted by colons."""
MAX_VALUES = 1_100_000
"""Counted by commas and opening brackets: a million token ids, the bound of `/detokenize`, and some more."""

_PIECE_BYTES = 1 << 16
"""Each step over a piece holds the GIL for at most a millisecond or two."""
_NOT_BRACKETS = bytes(set(range(256)) - set(b"[]{}"))


def decode(text: bytes) -> Any:
    """Decode the text. Raise ValueError with the reason if it is not valid JSON within the bounds."""
    check_bounds(text)
    try:
        return msgspec.json.decode(text)
    except (msgspec.DecodeError, RecursionError) as error:
        raise ValueError(str(error)) from error


def check_bounds(text: bytes) -> None:
    """Raise ValueError if nesting, containers or values exceed the bounds above."""
    containers = text.count(b"[") + text.count(b"{")
    if containers <= MAX_NESTING and len(text) <= MAX_MEMBERS:
        return
    depth = containers = commas = members = 0
    for outside in _outside_strings(text):
        commas += outside.count(b",")
        members += outside.count(b":")
        if members > MAX_MEMBERS:
            raise ValueError(f"its objects hold more than {MAX_MEMBERS} members")
        brackets = outside.translate(None, _NOT_BRACKETS)
        containers += brackets.count(b"[") + brackets.count(b"{")
        if containers > MAX_CONTAINERS:
            raise ValueError(f"it holds more than {MAX_CONTAINERS} objects and lists")
        if commas + containers > MAX_VALUES:
            raise ValueError(f"it holds more than {MAX_VALUES} values")
        for bracket in brackets:
            depth += 1 if bracket in b"[{" else -1
            if depth > MAX_NESTING:
                raise ValueError(f"it is nested deeper than {MAX_NESTING} levels")


def _outside_strings(text: bytes) -> Iterator[bytes]:
    """Yield the parts of `text` outside of its strings, piece by piece."""
    start = inside = 0
    while start < len(text):
        piece = text[start : start + _PIECE_BYTES]
        backslashes = len(piece) - len(piece.rstrip(b"\\"))
        if backslashes % 2 and len(piece) > 1:
            # The character that this backslash escapes begins the next piece.
            piece = piece[:-1]
        start += len(piece)
        # Drop pairs of backslashes first; a backslash that is then before a quote escapes it.
        parts = piece.replace(b"\\\\", b"").replace(b'\\"', b"").split(b'"')
        yield b"".join(parts[inside::2])
        inside = (inside + len(parts) - 1) % 2
