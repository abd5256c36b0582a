"""The text of an answer, read by generators that pause where more of it is needed.

A reader of a notation is then written as the notation is, from left to right, and no character is looked at
again with each piece: only what may begin a mark stays unread. From `keep` on, what was read can be read
again.
"""

from __future__ import annotations

from collections.abc import Generator, Iterable, Sequence
from enum import Enum
from sys import maxsize
from typing import Final, TypeAlias, TypeVar

from scheduler.answer.stop_strings import wanted_marks
from scheduler.events import AnswerPiece

LONGEST_NAME = 1024
"""Bound on a name or key that never ends."""


class Heavy(Enum):
    """Stands between the pieces of an answer: what comes next may take too long for the event loop, so the
    iterator should be continued in a worker thread."""

    HEAVY = "heavy"


HEAVY: Final = Heavy.HEAVY

T = TypeVar("T")
Waiting: TypeAlias = Generator[None, None, T]
"""Yields where more text is needed."""
Reading: TypeAlias = Generator[AnswerPiece | Heavy | None, None, T]
"""The pieces of the answer; None where more text is needed, HEAVY before work for a thread."""


def is_control(text: str) -> bool:
    """Return whether a text begins with a control token, which no text of an answer has."""
    return text.startswith("<|") or text[1:2] == "｜"


class NotAsWritten(Exception):
    """The text is not as the notation has it."""


class TextEnded(NotAsWritten):
    """The text ended where more of it belongs."""


class TextStream:
    def __init__(self) -> None:
        self._text = ""
        self._at = 0
        self._added = 0
        self._kept: list[str] | None = None
        self._kept_from = 0
        self.closed = False

    @property
    def position(self) -> int:
        """Return the number of characters that were read."""
        return self._added - (len(self._text) - self._at)

    def add(self, text: str) -> None:
        self._text, self._at = self._text[self._at :] + text, 0
        self._added += len(text)

    def keep(self) -> None:
        self._kept, self._kept_from = [], self.position

    def release(self) -> None:
        self._kept = None

    def raw(self, start: int, end: int | None = None) -> str:
        """Return the text between two kept positions; `end` is by default the current one."""
        assert self._kept is not None
        last = self.position if end is None else end
        return "".join(self._kept)[start - self._kept_from : last - self._kept_from]

    def rewind(self, position: int) -> None:
        """Make all text behind a kept position unread again."""
        assert self._kept is not None
        back, parts = self.position - position, list[str]()
        while back > 0:
            part = self._kept.pop()
            if len(part) > back:
                self._kept.append(part[:-back])
                part = part[-back:]
            parts.append(part)
            back -= len(part)
        if parts:
            self._text = "".join(reversed(parts)) + self._text[self._at :]
            self._at = 0

    def read(self, length: int) -> str:
        """Read and return characters that are known to be there."""
        text = self._text[self._at : self._at + length]
        self._at += length
        if self._kept is not None and text:
            self._kept.append(text)
        return text

    def more(self) -> Waiting[None]:
        """Wait for more text. Raise TextEnded."""
        if self.closed:
            raise TextEnded("it ends in the middle")
        yield

    def peek(self, length: int = 1) -> Waiting[str]:
        """Return the next characters, unread; fewer only at the end."""
        while len(self._text) - self._at < length and not self.closed:
            yield
        return self._text[self._at : self._at + length]

    def ended(self) -> Waiting[bool]:
        return (yield from self.peek()) == ""

    def space(self) -> Waiting[None]:
        while True:
            text, end = self._text, self._at
            while end < len(text) and text[end].isspace():
                end += 1
            self.read(end - self._at)
            if end < len(text) or self.closed:
                return
            yield

    def optional(self, literal: str) -> Waiting[bool]:
        """Read `literal` if it is next, and return whether it was."""
        while True:
            found = self._text[self._at : self._at + len(literal)]
            if found == literal:
                self.read(len(literal))
                return True
            if not literal.startswith(found) or self.closed:
                return False
            yield

    def any_of(self, literals: Iterable[str]) -> Waiting[str]:
        """Read and return the first of `literals` that is next; "" if none is."""
        for literal in literals:
            if (yield from self.optional(literal)):
                return literal
        return ""

    def run(self, literals: Sequence[str], most: int = maxsize) -> Waiting[bool]:
        """Read `literals` one after another, with white space before each. Return whether there was one."""
        begun = end = self.position
        while most > 0:
            yield from self.space()
            if not (yield from self.any_of(literals)):
                break
            end, most = self.position, most - 1
        self.rewind(end)
        return end > begun

    def ahead(self, reading: Waiting[T]) -> Waiting[T]:
        """Return what a reading finds, and read nothing."""
        begun = self.position
        found = yield from reading
        self.rewind(begun)
        return found

    def word(self, others: str) -> Waiting[str]:
        word = ""
        while (letter := (yield from self.peek())) and (letter.isalnum() or letter in others):
            word += self.read(1)
        return word

    def one_of(self, literals: Sequence[str]) -> Waiting[str]:
        """Read and return the first of `literals` that is next. Raise NotAsWritten."""
        if found := (yield from self.any_of(filter(None, literals))):
            return found
        rest = self._text[self._at :]
        is_half = any(one.startswith(rest) for one in literals)
        raise (TextEnded if is_half else NotAsWritten)(f"{rest[:40]!r} instead of {' or '.join(literals)}")

    def before(self, marks: Sequence[str]) -> tuple[str, str]:
        """Read and return the text that is certainly before the first of `marks`, and that mark, unread (""
        if it is not there yet). If several begin at the same place, the longest counts."""
        if not marks:
            return self.read(len(self._text) - self._at), ""
        wanted = wanted_marks(tuple(marks))
        start = max(self._at, len(self._text) - wanted.longest)
        keep = 0 if self.closed else wanted.beginning(self._text[start:])
        found = wanted.pattern.search(self._text, self._at)
        # What begins before it, at the end of the text, may be a longer one.
        if found is not None and (not keep or found.start() < len(self._text) - keep):
            return self.read(found.start() - self._at), found[0]
        return self.read(len(self._text) - keep - self._at), ""

    def until(
        self, marks: Sequence[str], *, longest: int | None = None, may_end: bool = False
    ) -> Waiting[tuple[str, str]]:
        """Read and return all text before the first of `marks`, and that mark. Raise NotAsWritten if there is
        none, or not within `longest` characters; with `may_end` the end of the text is one, too."""
        parts: list[str] = []
        length = 0
        while True:
            text, mark = self.before(marks)
            parts.append(text)
            length += len(text)
            if longest is not None and length > longest:
                raise NotAsWritten(f"no {marks[0]} within {longest} characters")
            if mark or (may_end and self.closed):
                self.read(len(mark))
                return "".join(parts), mark
            yield from self.more()

    def name(self, ends: Sequence[str], *, may_end: bool = False) -> Waiting[tuple[str, str]]:
        return (yield from self.until(ends, longest=LONGEST_NAME, may_end=may_end))

    def character(self) -> Waiting[str]:
        """Read and return one character. Raise TextEnded."""
        while self._at == len(self._text):
            yield from self.more()
        return self.read(1)
