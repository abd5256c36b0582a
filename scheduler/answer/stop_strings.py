"""Find stop strings in a stream of text, and hold back text that may begin one.

The answer ends at the same place for any pieces of the text: before the stop string that is complete first
(of several that end at the same character, before the longest).

A special token gives no text, and a stop string may name it, alone or beside text. Such a token is read as
one character that no text has, half of a surrogate pair, and is never passed on.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Mapping, Sequence
from functools import lru_cache

_FIRST_MARK = 0xD800
"""There are 2,048 halves of pairs, and stop strings name fewer tokens: they have 4,096 characters."""


class TextState:
    """A state of reading a text: the longest suffix of what was read that begins a wanted string.

    `depth`: the suffix's length; `longer`: whether a wanted string goes on after it. `match`: the longest
    wanted string that ends here. `shorter`: the state of the next shorter such suffix."""

    __slots__ = ("depth", "following", "high", "longer", "low", "match", "shorter")

    def __init__(self, low: int, high: int, depth: int, match: str | None, shorter: TextState | None) -> None:
        self.low, self.high, self.depth = low, high, depth
        self.match = match
        self.shorter = shorter or self
        self.longer = low < high
        self.following: dict[str, TextState] = {}


class WantedStrings:
    """Strings to look for at once, at a cost that depends neither on their number nor on their length (Aho
    and Corasick). States are made when a text reaches them: 64 strings of 256 characters have 16,000."""

    def __init__(self, wanted: Sequence[str], silent: Mapping[int, str] = {}) -> None:
        """`silent`: the special tokens that `wanted` names and that give no text, with their spelling."""
        self.marks = {token: chr(_FIRST_MARK + number) for number, token in enumerate(silent)}
        """What stands for each of these tokens in the text that is read."""
        self._spellings = {ord(self.marks[token]): spelling for token, spelling in silent.items()}
        # The same letters may also be written as text.
        self._wanted = sorted({*wanted, *map(self._marked, wanted)} - {""})
        self._firsts = frozenset(one[0] for one in self._wanted)
        self.longest = max(map(len, self._wanted), default=0)
        self.start = TextState(0, len(self._wanted), 0, None, None)

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

    def step(self, state: TextState, character: str) -> TextState:
        """Return the state after one more character."""
        start = self.start
        while True:
            if (found := state.following.get(character)) is not None:
                return found
            if state is start:
                return self._made(state, character) or start if character in self._firsts else start
            if (made := self._made(state, character)) is not None:
                return made
            state = state.shorter

    def _made(self, state: TextState, character: str) -> TextState | None:
        depth = state.depth
        low = bisect_left(self._wanted, character, state.low, state.high, key=lambda one: one[depth])
        if low == state.high or self._wanted[low][depth] != character:
            return None
        high = bisect_right(self._wanted, character, low, state.high, key=lambda one: one[depth])
        shorter = self.start if state is self.start else self.step(state.shorter, character)
        match = shorter.match
        if len(self._wanted[low]) == depth + 1:
            match = self._wanted[low]
            low += 1
        made = state.following[character] = TextState(low, high, depth + 1, match, shorter)
        return made

    def beginning(self, state: TextState) -> TextState:
        """Return the state of the longest suffix of what was read that begins a wanted string and is not all
        of it."""
        while not state.longer and state is not self.start:
            state = state.shorter
        return state


class StopStrings:
    """The stop strings of one answer, and text held back because it may begin one."""

    def __init__(self, stops: WantedStrings, *, included: bool = False) -> None:
        """`stops`: shared by the choices of a request."""
        self._stops = stops
        self._included = included
        self._held = ""
        self._state = stops.start
        self.matched: str | None = None

    def feed(self, text: str, *, may_end: bool = True) -> str:
        """Return the text that cannot be part of a stop string. After a match, return the text before the
        stop string, and the stop string too if it is `included`; `matched` is then set, and nothing more may
        be fed. Without `may_end` no stop string ends in `text`, but one may begin."""
        assert self.matched is None, "text after the stop string"
        if not self._stops.longest:
            return text
        step, state, before = self._stops.step, self._state, len(self._held)
        for read, character in enumerate(text, before + 1):
            state = step(state, character)
            if may_end and state.match is not None:
                self.matched = self._stops.spelled(state.match)
                text, self._held = self._held + text, ""
                before_it = self._stops.audible(text[: read - len(state.match)])
                return before_it + self.matched if self._included else before_it
        text = self._held + text
        self._state = state = self._stops.beginning(state)
        certain = len(text) - state.depth
        self._held = text[certain:]
        return self._stops.audible(text[:certain])

    def finish(self) -> str:
        """Return the text held back, at the end of the answer: it was no stop string."""
        held, self._held = self._held, ""
        return self._stops.audible(held)


@lru_cache(maxsize=256)
def _marks(wanted: tuple[str, ...]) -> WantedStrings:
    return WantedStrings(wanted)


def possible_beginning(text: str, marks: Sequence[str]) -> int:
    """Return the length of the longest suffix of `text` that is a proper prefix of one of `marks`. These are
    a notation's, so what is computed of them is cached."""
    wanted = _marks(tuple(marks))
    state = wanted.start
    for character in text[max(0, len(text) - wanted.longest + 1) :]:
        state = wanted.step(state, character)
    return wanted.beginning(state).depth
