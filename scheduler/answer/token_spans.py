"""Map pieces of the answer's text to its tokens, to attach log-probabilities.

The answer holds back and cuts text (characters of several tokens, stop strings, marks, white space next to
them) at other places than token ends. So each token has an offset in the decoded text, in characters, and
goes with the first piece that has any part of it. Tokens that do not complete a character go with the token
that does.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

from scheduler.events import TokenLogprobs
from scheduler.shared.messages import LogprobsOut


class TokenSpans:
    """The tokens of one answer. `token_bytes` gives the bytes of one token, `opening_bytes` those of one that
    begins a text."""

    def __init__(
        self,
        token_bytes: Callable[[int], bytes],
        opening_bytes: Callable[[int], bytes] | None = None,
    ) -> None:
        self._token_bytes = token_bytes
        self._opening_bytes = opening_bytes or token_bytes
        self._characters = 0
        self._waiting: list[TokenLogprobs] = []
        """Tokens without text so far."""
        self._spans: deque[tuple[int, list[TokenLogprobs]]] = deque()
        """The offset of its end and the tokens, for each run of tokens with common text."""

    def add(self, token_id: int, logprobs: LogprobsOut, characters: int, *, opens: bool = False) -> None:
        """Add the next token, with which the decoded text grew by `characters`. `opens`: it begins a text."""
        self._waiting.append(self.spelled(token_id, logprobs, opens=opens))
        self.add_text(characters)

    def spelled(self, token_id: int, logprobs: LogprobsOut, *, opens: bool = False) -> TokenLogprobs:
        """Return the record of a token that begins at the end of the decoded text."""
        spelling = self._opening_bytes if opens else self._token_bytes
        return TokenLogprobs.of(token_id, logprobs.chosen, logprobs.top, spelling, self._characters)

    def add_text(self, characters: int) -> None:
        """Count text that the detokenizer held back for the tokens so far."""
        if characters:
            self._characters += characters
            self._spans.append((self._characters, self._waiting))
            self._waiting = []

    def take(self, start: int, end: int) -> tuple[TokenLogprobs, ...]:
        """Return the tokens of the characters from `start` to `end` that were not taken yet. Tokens before
        `start` are dropped: they are not answer text."""
        taken: list[TokenLogprobs] = []
        while self._spans:
            span_end, tokens = self._spans[0]
            if span_end > start:
                # A token that spans two pieces goes with the first.
                if tokens and tokens[0].offset >= end:
                    break
                taken += tokens
                if span_end > end:
                    self._spans[0] = (span_end, [])
                    break
            self._spans.popleft()
        return tuple(taken)

    def take_waiting(self) -> tuple[TokenLogprobs, ...]:
        """Return the tokens without text, at the end of the answer."""
        taken, self._waiting = tuple(self._waiting), []
        return taken
