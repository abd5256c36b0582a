"""The text of a block of calls, read by generators that pause where more of it is needed.

A reader of a notation is then written as the notation is, from left to right, and no character is looked at
again with each piece: only what may begin a mark stays here.
"""

from __future__ import annotations

import re
from collections.abc import Generator, Sequence
from functools import cache
from typing import TypeAlias, TypeVar

from scheduler.answer.stop_strings import possible_beginning

LONGEST_NAME = 1024
"""Bound on a name or key that never ends."""

T = TypeVar("T")
Waiting: TypeAlias = Generator[None, None, T]
"""Yields where more text is needed."""


@cache
def _pattern(marks: tuple[str, ...]) -> re.Pattern[str]:
    return re.compile("|".join(map(re.escape, marks)))


class NotAsWritten(Exception):
    """The text is not as the notation's template writes it: mlx-lm's parser decides about the whole block."""


class TextEnded(NotAsWritten):
    """The block ended where more text belongs. `text`: what was read of the part that is not over."""

    text = ""


class TextStream:
    def __init__(self) -> None:
        self._text = ""
        self._at = 0
        self._added = 0
        self._closed = False

    @property
    def position(self) -> int:
        """Return the number of characters that were read."""
        return self._added - (len(self._text) - self._at)

    def add(self, text: str) -> None:
        self._text, self._at = self._text[self._at :] + text, 0
        self._added += len(text)

    def close(self) -> None:
        """Take note that no more text comes."""
        self._closed = True

    def more(self) -> Waiting[None]:
        """Wait for more text. Raise TextEnded."""
        if self._closed:
            raise TextEnded("it ends in the middle")
        yield

    def peek(self, length: int = 1) -> Waiting[str]:
        """Return the next characters, unread; fewer only at the end of the block."""
        while len(self._text) - self._at < length and not self._closed:
            yield
        return self._text[self._at : self._at + length]

    def space(self) -> Waiting[None]:
        """Read white space."""
        while (yield from self.peek()).isspace():
            self._at += 1

    def optional(self, literal: str) -> Waiting[bool]:
        """Read `literal` if it is next, and return whether it was."""
        found = yield from self._is_next(literal)
        if found:
            self._at += len(literal)
        return found

    def one_of(self, literals: Sequence[str]) -> Waiting[str]:
        """Read and return one of `literals`, none of which begins another. Raise NotAsWritten."""
        for literal in literals:
            if (yield from self.optional(literal)):
                return literal
        raise NotAsWritten(f"{self._text[self._at : self._at + 40]!r} instead of {' or '.join(literals)}")

    def _is_next(self, literal: str) -> Waiting[bool]:
        """Return whether `literal` is next; wait for more text only while it may be."""
        while True:
            found = self._text[self._at : self._at + len(literal)]
            if found == literal:
                return True
            if not literal.startswith(found) or self._closed:
                return False
            yield

    def before(self, marks: Sequence[str]) -> tuple[str, str]:
        """Read and return the text that is certainly before the first of `marks`, and that mark ("" if it is
        not there yet). If several begin at the same place, the first in `marks` counts."""
        if (found := _pattern(tuple(marks)).search(self._text, self._at)) is not None:
            text = self._text[self._at : found.start()]
            self._at = found.end()
            return text, found[0]
        longest = max(map(len, marks))
        keep = possible_beginning(self._text[max(self._at, len(self._text) - longest) :], marks)
        text = self._text[self._at : len(self._text) - keep]
        self._at += len(text)
        return text, ""

    def until(self, marks: Sequence[str], *, longest: int | None = None) -> Waiting[tuple[str, str]]:
        """Read and return all text before the first of `marks`, and that mark. Raise NotAsWritten if there is
        none in the block, or not within `longest` characters."""
        parts: list[str] = []
        length = 0
        while True:
            text, mark = self.before(marks)
            parts.append(text)
            length += len(text)
            if longest is not None and length > longest:
                raise NotAsWritten(f"no {marks[0]} within {longest} characters")
            if mark:
                return "".join(parts), mark
            try:
                yield from self.more()
            except TextEnded as end:
                end.text = "".join(parts) + self._text[self._at :]
                raise

    def name(self, ends: Sequence[str]) -> Waiting[tuple[str, str]]:
        """Read and return a name and the mark at its end."""
        return (yield from self.until(ends, longest=LONGEST_NAME))

    def some(self) -> Waiting[str]:
        """Read and return what there is, at least one character. Raise TextEnded."""
        while self._at == len(self._text):
            yield from self.more()
        text, self._at = self._text[self._at :], len(self._text)
        return text

    def character(self) -> Waiting[str]:
        """Read and return one character. Raise TextEnded."""
        while self._at == len(self._text):
            yield from self.more()
        self._at += 1
        return self._text[self._at - 1]

    def put_back(self, text: str) -> None:
        """Make `text`, the end of what was read last, unread again."""
        self._at -= len(text)

    def ends(self) -> Waiting[bool]:
        """Read white space, and return whether the block ends after it."""
        yield from self.space()
        return (yield from self.peek()) == ""
