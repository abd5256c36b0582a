"""Find stop strings in a stream of text, and hold back text that may begin one.

The answer ends at the same place for any pieces of the text: before the stop string that is complete first
(of several that end at the same character, before the longest).

A special token gives no text, and a stop string may name it, alone or beside text. Such a token is read as
one character that no text has, half of a surrogate pair, and is never passed on.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Mapping, Sequence
from functools import cached_property, lru_cache

_FIRST_MARK = 0xD800
"""There are 2,048 halves of pairs, and stop strings name fewer tokens: they have 4,096 characters."""


class WantedStrings:
    """Strings to look for at once: what may begin one is found by bisection in their order."""

    def __init__(self, wanted: Sequence[str], silent: Mapping[int, str] = {}) -> None:
        """`silent`: the special tokens that `wanted` names and that give no text, with their spelling."""
        self.marks = {token: chr(_FIRST_MARK + number) for number, token in enumerate(silent)}
        """What stands for each of these tokens in the text that is read."""
        self._spellings = {ord(self.marks[token]): spelling for token, spelling in silent.items()}
        # The same letters may also be written as text.
        self._wanted = sorted({*wanted, *map(self._marked, wanted)} - {""})
        self._firsts = frozenset(one[0] for one in self._wanted)
        self._lasts = frozenset(one[-1] for one in self._wanted)
        self.longest = max(map(len, self._wanted), default=0)

    @cached_property
    def pattern(self) -> re.Pattern[str]:
        return re.compile("|".join(map(re.escape, sorted(self._wanted, key=len, reverse=True))))

    def _marked(self, wanted: str) -> str:
        for mark, spelling in sorted(self._spellings.items(), key=lambda one: len(one[1]), reverse=True):
            wanted = wanted.replace(spelling, chr(mark))
        return wanted

    def spelled(self, text: str) -> str:
        """Return `text` with the spelling of each token that has a mark in it."""
        return text.translate(self._spellings) if self._spellings else text

    def audible(self, text: str) -> str:
        """Return `text` without marks."""
        return text.translate(dict.fromkeys(self._spellings)) if self._spellings else text

    def first_in(self, text: str, read: int) -> tuple[int, str] | None:
        """Return the end of the string that is complete first behind the `read` characters, and that string;
        the longest of several."""
        if self._lasts.isdisjoint(text[read:]):
            return None
        places = ((text.find(one, max(0, read + 1 - len(one))), one) for one in self._wanted)
        found = [(start + len(one), one) for start, one in places if start >= 0]
        return min(found, key=lambda one: (one[0], -len(one[1])), default=None)

    def beginning(self, text: str) -> int:
        """Return the length of the longest suffix with which a wanted string begins, and is not all of it."""
        for start in range(max(0, len(text) + 1 - self.longest), len(text)):
            if text[start] in self._firsts:
                rest = text[start:]
                place = bisect_right(self._wanted, rest)
                if place < len(self._wanted) and self._wanted[place].startswith(rest):
                    return len(rest)
        return 0


class StopStrings:
    """The stop strings of one answer, and text held back because it may begin one."""

    def __init__(self, stops: WantedStrings, *, included: bool = False) -> None:
        self._stops = stops
        self._included = included
        self._held = ""
        self.matched: str | None = None

    def feed(self, text: str, *, may_end: bool = True) -> str:
        """Return the text that cannot be part of a stop string. After a match, return the text before the
        stop string, and the stop string too if it is `included`; `matched` is then set, and nothing more may
        be fed. Without `may_end` no stop string ends in `text`, but one may begin."""
        assert self.matched is None, "text after the stop string"
        if not self._stops.longest:
            return text
        read, text = len(self._held), self._held + text
        if may_end and (found := self._stops.first_in(text, read)) is not None:
            end, match = found
            self.matched, self._held = self._stops.spelled(match), ""
            before_it = self._stops.audible(text[: end - len(match)])
            return before_it + self.matched if self._included else before_it
        certain = len(text) - self._stops.beginning(text)
        self._held = text[certain:]
        return self._stops.audible(text[:certain])

    def finish(self) -> str:
        """Return the text held back, at the end of the answer: it was no stop string."""
        held, self._held = self._held, ""
        return self._stops.audible(held)


@lru_cache(maxsize=1024)
def wanted_marks(marks: tuple[str, ...]) -> WantedStrings:
    return WantedStrings(marks)
