"""The sections of an answer, and the white space at their edges."""

from __future__ import annotations

from enum import Enum, auto


class SectionKind(Enum):
    TEXT = auto()
    REASONING = auto()
    HIDDEN = auto()
    """Headers that are not part of the answer."""


class SectionText:
    """The text of the sections of one kind. White space next to a mark is part of the format and is
    dropped, unless text follows on both sides of the mark: then one of the two stays between them."""

    def __init__(self, separator: str) -> None:
        """`separator` stands between two texts that have no white space between them."""
        self._separator = separator
        self._begun = False
        self._at_mark = False
        self._space: list[str] = []
        """White space behind the newest text, or behind the mark. A list: joining it with each token would be
        quadratic."""
        self._gap = ""
        """What stays between the text before the mark and the one behind it."""

    def add(self, text: str) -> tuple[str, str]:
        """Return what stands between two sections, if a text begins here, and what is certain of the text."""
        kept = text.rstrip()
        if not kept:
            self._space.append(text)
            return "", ""
        whole, gap = "".join(self._space) + kept, ""
        if self._at_mark:
            inner = whole.lstrip()
            if not self._begun:
                whole = inner
            elif len(inner) == len(whole):
                gap = self._gap
        self._space = [text[len(kept) :]] if len(kept) < len(text) else []
        self._begun, self._at_mark = True, False
        return gap, whole

    def mark(self) -> None:
        """Take note that a mark follows."""
        if not self._at_mark:
            self._gap = "".join(self._space) or self._separator
        self._at_mark, self._space = True, []

    @property
    def at_mark(self) -> bool:
        """Return whether there is no text since the last mark or the beginning."""
        return self._at_mark or not self._begun

    def unmarked(self) -> None:
        """Take note that what seemed to be marks is part of the text."""
        self._begun, self._at_mark, self._space = True, False, []

    def trailing(self) -> str:
        """Return the white space behind the newest text."""
        return "" if self._at_mark else "".join(self._space)

    def rest(self) -> str:
        """Return the same at the end of the answer, where it is part of the text."""
        space, self._space = self.trailing(), []
        return space
