"""Decode clients' JSON text strictly and within bounds that are checked before any value is made.

Python's own parser accepts NaN, which is not JSON, and keeps lone surrogates, which no template, tokenizer or
log can encode. A deeply nested value can cause a recursion error wherever code walks it. A short text can
contain many values: `[],` is 3 bytes of text and 64 bytes of list.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any

import msgspec
import numpy as np

MAX_NESTING = 64
"""Nesting of objects and lists. Tool schemas, the deepest that clients send, stay below 30."""
MAX_CONTAINERS = 1 << 16
"""Objects and lists together. Each becomes at most 2.5 KB (a validated message), so all become 160 MB."""
MAX_MEMBERS = 1 << 18
"""Members of all objects together, counted by colons."""
MAX_VALUES = 1_100_000
"""Counted by commas and opening brackets: a million token ids, the bound of `/detokenize`, and some more."""
CONTAINER_BYTES, VALUE_BYTES = 512, 32
"""What an object or a list, and a value in it, takes at most in what is made of a body for a prompt."""
MAX_HALVES = 1 << 16
"""Lone surrogates, each of which takes 2 µs."""

_PIECE_BYTES = 1 << 16
_SHORT_BYTES, _FEW = 1 << 13, 16
"""A shorter text with at most this many brackets is not scanned: its brackets, commas and colons in strings
count, too."""
_NO_BRACKETS = bytes(set(range(256)) - set(b"[]{}"))
_CLOSING = 4
"""A bit that `]` and `}` have, and `[` and `{` have not."""
_BACKSLASH = ord("\\")


_BOM = b"\xef\xbb\xbf"
_HALF = re.compile(rb"\\u[dD][89abAB][0-9a-fA-F]{2}|\\u[dD][c-fC-F][0-9a-fA-F]{2}|\xed[\xa0-\xbf][\x80-\xbf]")
"""Half of a character: an escape, or bytes that are not UTF-8."""
_LOW_HALF = re.compile(rb"\\u[dD][c-fC-F][0-9a-fA-F]{2}")
_ESCAPE_BYTES = 6


@dataclass(slots=True)
class Budget:
    """What one body may still hold. The JSON texts in its strings (a call's arguments) spend it as well."""

    containers: int
    members: int
    values: int

    @classmethod
    def whole(cls) -> Budget:
        return cls(MAX_CONTAINERS, MAX_MEMBERS, MAX_VALUES)

    def spend(self, containers: int = 0, members: int = 0, values: int = 0) -> None:
        """Raise TooMuch for more than is left."""
        self.containers -= containers
        self.members -= members
        self.values -= values
        self.check()

    def check(self) -> None:
        """Raise TooMuch if more was spent than there was."""
        if self.containers < 0:
            raise TooMuch(f"it holds more than {MAX_CONTAINERS} objects and lists")
        if self.members < 0:
            raise TooMuch(f"its objects hold more than {MAX_MEMBERS} members")
        if self.values < 0:
            raise TooMuch(f"it holds more than {MAX_VALUES} values")

    @property
    def spent_bytes(self) -> int:
        """Return how much memory the prompt of this body may take beside its texts."""
        containers, values = MAX_CONTAINERS - self.containers, MAX_VALUES - self.values
        return containers * CONTAINER_BYTES + values * VALUE_BYTES


class TooMuch(ValueError):
    """The body's budget is spent."""


_current: ContextVar[Budget | None] = ContextVar("json_budget", default=None)


@contextmanager
def one_body() -> Iterator[Budget]:
    """Let all JSON texts that are read within the block spend one budget."""
    token = _current.set(budget := Budget.whole())
    try:
        yield budget
    finally:
        _current.reset(token)


def decode(text: bytes) -> Any:
    """Decode the text. Raise ValueError with the reason if it is not valid JSON within the bounds.

    A byte order mark before it is skipped. A lone surrogate, half of a character that a client has cut, is
    U+FFFD: it would come back with every later turn of the conversation."""
    text = text.removeprefix(_BOM)
    check_bounds(text)
    try:
        return _decoded(text)
    except ValueError:
        pieces = list(_without_halves(text))
        if len(pieces) == 1:
            raise
    return _decoded(b"".join(pieces))


def _decoded(text: bytes) -> Any:
    try:
        return msgspec.json.decode(text)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise ValueError(str(error)) from error


def _without_halves(text: bytes) -> Iterator[bytes]:
    """Yield the text in pieces, U+FFFD for each half of a character that stands alone. In steps that give
    other threads their turn. Raise ValueError for too many."""
    kept = start = seen = halves = 0
    while start < len(text):
        end = start + _PIECE_BYTES
        if (found := _HALF.search(text, start, end)) is None:
            # The next step begins early enough for an escape that this one cuts.
            start = max(start + 1, end - _ESCAPE_BYTES + 1)
            continue
        before = text[seen : found.start()]
        seen = start = found.end()
        if found[0][0] == _BACKSLASH:
            if (len(before) - len(before.rstrip(b"\\"))) % 2:
                continue  # a backslash escapes this one
            if found[0][3] in b"89abAB" and _LOW_HALF.match(text, found.end()):
                seen = start = found.end() + _ESCAPE_BYTES
                continue
        yield text[kept : found.start()]
        yield b"\\ufffd" if found[0][0] == _BACKSLASH else b"\xef\xbf\xbd"
        kept = found.end()
        if (halves := halves + 1) > MAX_HALVES:
            raise ValueError(f"it holds more than {MAX_HALVES} halves of characters (lone surrogates)")
    yield text[kept:]


def check_bounds(text: bytes) -> None:
    """Raise ValueError if nesting, containers or values exceed the bounds above, TooMuch if they do together
    with what was read before of this body."""
    budget = _current.get() or Budget.whole()
    brackets, commas, colons = text.count(b"[") + text.count(b"{"), text.count(b","), text.count(b":")
    if len(text) <= _SHORT_BYTES and brackets <= _FEW:
        budget.spend(brackets, colons, brackets + commas)
        return
    # These counts include colons and commas in strings: few texts reach a bound only by them.
    counts_members = colons > budget.members // 4
    counts_values = commas > (budget.values - budget.containers) // 4
    budget.spend(members=0 if counts_members else colons, values=0 if counts_values else commas)
    depth = 0
    for outside in _outside(text):
        around = outside.translate(None, _NO_BRACKETS)
        opened = around.count(b"[") + around.count(b"{")
        budget.spend(
            opened,
            outside.count(b":") if counts_members else 0,
            opened + (outside.count(b",") if counts_values else 0),
        )
        if around:
            read = np.frombuffer(around, np.uint8)
            depths = np.cumsum(np.where((read & _CLOSING) == 0, 1, -1)) + depth
            if depths.max() > MAX_NESTING:
                raise ValueError(f"it is nested deeper than {MAX_NESTING} levels")
            depth = int(depths[-1])


def _outside(text: bytes) -> Iterator[bytes]:
    """Yield what is outside of strings, in pieces between which other threads have a turn."""
    start = inside = 0
    while start < len(text):
        part = text[start : start + _PIECE_BYTES]
        if len(part) > 1 and (len(part) - len(part.rstrip(b"\\"))) % 2:
            # The character that this backslash escapes begins the next piece.
            part = part[:-1]
        start += len(part)
        between = part.replace(b"\\\\", b"").replace(b'\\"', b"").split(b'"')
        yield b"".join(between[inside::2])
        inside ^= (len(between) - 1) % 2
