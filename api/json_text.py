"""JSON text from clients, decoded strictly and within bounds that are checked before any value is made.

Python's own reader accepts NaN and lone surrogates, which are not JSON, and which no template, tokenizer or
log can pass on. A deeply nested value can end in a recursion error wherever it is walked. A short text can
hold many values: `[],` is 3 bytes of text and 64 bytes of list.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import msgspec

MAX_NESTING = 64
"""Objects and lists inside each other. Tools' schemas, the deepest that clients send, stay under 30."""
MAX_CONTAINERS = 1 << 16
"""Objects and lists. One of them becomes at most 2.5 KB (a validated message), so all become 160 MB."""
MAX_MEMBERS = 1 << 18
"""Of all objects together, by the colons."""
MAX_VALUES = 1_100_000
"""Counted by commas and opening brackets: a million token ids, which `/detokenize` takes, and some more."""

_PIECE_BYTES = 1 << 16
"""Each step over a piece holds the interpreter's lock for at most a millisecond or two."""
_NOT_BRACKETS = bytes(set(range(256)) - set(b"[]{}"))


def decode(text: bytes) -> Any:
    """Raises ValueError, with the reason."""
    check_bounds(text)
    try:
        return msgspec.json.decode(text)
    except (msgspec.DecodeError, RecursionError) as error:
        raise ValueError(str(error)) from error


def check_bounds(text: bytes) -> None:
    """Raises ValueError for more nesting, containers or values than the bounds above allow."""
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
    """What of `text` stands outside of its strings, piece by piece."""
    start = inside = 0
    while start < len(text):
        piece = text[start : start + _PIECE_BYTES]
        backslashes = len(piece) - len(piece.rstrip(b"\\"))
        if backslashes % 2 and len(piece) > 1:
            # The next piece begins with what this backslash escapes.
            piece = piece[:-1]
        start += len(piece)
        # Pairs of backslashes first: what then stands before a quote escapes it.
        parts = piece.replace(b"\\\\", b"").replace(b'\\"', b"").split(b'"')
        yield b"".join(parts[inside::2])
        inside = (inside + len(parts) - 1) % 2
