"""The log-probabilities of one prompt's tokens, as the engine sends them, chunk by chunk.

They are kept as they came, and spelled where they are written. The first of a request's choices gets them,
once, with its end. When an engine dies before the prompt is whole, the next one begins again.
"""

from __future__ import annotations

from codecs import getincrementaldecoder
from collections.abc import Callable, Iterator, Sequence
from itertools import zip_longest

from scheduler.errors import LinkError
from scheduler.events import PromptToken, TokenLogprobs
from scheduler.shared.messages import LogprobsOut

_utf8 = getincrementaldecoder("utf-8")


class PromptLogprobs:
    """The log-probabilities of one prompt. `token_bytes` returns the bytes of one token, `opening_bytes`
    those of one that begins a text."""

    def __init__(
        self,
        prompt: Sequence[int],
        token_bytes: Callable[[int], bytes],
        opening_bytes: Callable[[int], bytes] | None = None,
        added_tokens: int = 0,
    ) -> None:
        """`added_tokens`: how many stand before the prompt's text and are no part of it, such as BOS."""
        self._prompt = prompt
        self._added_tokens = added_tokens
        self._token_bytes = token_bytes
        self._opening_bytes = opening_bytes or token_bytes
        self._entries: list[LogprobsOut] = []

    @property
    def whole(self) -> bool:
        return len(self._entries) == len(self._prompt) - 1

    def add(self, start: int, entries: Sequence[LogprobsOut]) -> None:
        """Add the next ones, for the tokens from position `start` on. Raise LinkError if others were
        expected."""
        if start != 1 + len(self._entries):
            raise LinkError(
                f"the engine sent a prompt's log-probabilities from {start}, twice or out of order"
            )
        self._entries += entries

    def lose(self) -> None:
        """Drop them unless they are whole: the engine died, and the next one computes all of them again."""
        if not self.whole:
            self._entries.clear()

    def spelled(self) -> Iterator[PromptToken]:
        decoder, characters = _utf8("replace"), 0
        for place, (token, entry) in enumerate(zip_longest(self._prompt, (None, *self._entries))):
            spelling = self._opening_bytes if place == self._added_tokens else self._token_bytes
            data, known = spelling(token), None
            if entry is not None:
                known = TokenLogprobs.of(token, entry.chosen, entry.top, spelling, characters)
            yield PromptToken(data, characters, known)
            if place >= self._added_tokens:
                characters += len(decoder.decode(data))
