"""Find stop strings in a stream of text, and hold back text that may begin one.

The answer ends at the same place for any pieces of the text: before the stop string that is complete first
(of several that end at the same character, before the longest).
"""

from __future__ import annotations

from collections.abc import Sequence


class StopStrings:
    """The stop strings of one request, and text held back because it may begin one."""

    def __init__(self, stops: Sequence[str], *, included: bool = False) -> None:
        assert all(stops), "an empty stop string"
        self._stops = tuple(stops)
        self._included = included
        self._held = ""
        self.matched: str | None = None

    def feed(self, text: str, *, may_end: bool = True) -> str:
        """The text that cannot be part of a stop string. After a match: the text before it, with it if it is
        `included`; `matched` is set, and nothing may be fed any more. Without `may_end` no stop string ends
        in `text`, but one may begin."""
        assert self.matched is None, "text after the stop string"
        if not self._stops:
            return text
        before, text = len(self._held), self._held + text
        match = self._first_match(text, before) if may_end else None
        if match is not None:
            start, self.matched = match
            self._held = ""
            return text[: start + len(self.matched)] if self._included else text[:start]
        keep = possible_beginning(text, self._stops)
        self._held = text[len(text) - keep :]
        return text[: len(text) - keep]

    def finish(self) -> str:
        """Return the text held back, at the end of the answer: it was no stop string."""
        held, self._held = self._held, ""
        return held

    def _first_match(self, text: str, before: int) -> tuple[int, str] | None:
        """The first match that ends after the first `before` characters."""
        found = [
            (start + len(stop), start, stop)
            for stop in self._stops
            if (start := text.find(stop, max(0, before - len(stop) + 1))) >= 0
        ]
        if not found:
            return None
        _, start, stop = min(found)
        return start, stop


def possible_beginning(text: str, wanted: Sequence[str]) -> int:
    """Length of the longest suffix of `text` that is a proper prefix of one of `wanted`."""
    longest = 0
    for string in wanted:
        for length in range(min(len(string) - 1, len(text)), longest, -1):
            if text.endswith(string[:length]):
                longest = length
                break
    return longest
