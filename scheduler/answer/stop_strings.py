"""Find stop strings in a stream of text, and hold back text that may begin one.

The answer ends at the same place for any pieces of the text: before the stop string that is complete first
(of several that end at the same character, before the longest).
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from functools import lru_cache


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

    def __init__(self, wanted: Sequence[str]) -> None:
        self._wanted = sorted(set(wanted) - {""})
        self._firsts = frozenset(one[0] for one in self._wanted)
        self.longest = max(map(len, self._wanted), default=0)
        self.start = TextState(0, len(self._wanted), 0, None, None)

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
                end = read if self._included else read - len(state.match)
                text, self._held, self.matched = self._held + text, "", state.match
                return text[:end]
        text = self._held + text
        self._state = state = self._stops.beginning(state)
        certain = len(text) - state.depth
        self._held = text[certain:]
        return text[:certain]

    def finish(self) -> str:
        """Return the text held back, at the end of the answer: it was no stop string."""
        held, self._held = self._held, ""
        return held


@lru_cache(maxsize=256)
def _marks(wanted: tuple[str, ...]) -> WantedStrings:
    return WantedStrings(wanted)


def possible_beginning(text: str, marks: Sequence[str]) -> int:
    """Return the length of the longest suffix of `text` that is a proper prefix of one of `marks`. These are
    a dialect's, so what is computed of them is cached."""
    wanted = _marks(tuple(marks))
    state = wanted.start
    for character in text[max(0, len(text) - wanted.longest + 1) :]:
        state = wanted.step(state, character)
    return wanted.beginning(state).depth
