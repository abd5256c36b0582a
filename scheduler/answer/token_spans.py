"""Which of an answer's tokens a run of its text is made of: log-probabilities find their way to the text.

Text is held back and cut on its way (characters in several tokens, stop strings, marks, white space next
to them), and tokens end in the middle of all that. So each token has its place in the decoded text, in
characters from the answer's beginning, and goes with the first piece of text that has any of it. Tokens that
complete no character by themselves belong to the one that does.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

from scheduler.events import Logprob, TokenLogprobs
from scheduler.link.messages import LogprobsOut


class TokenSpans:
    """One answer's. `token_bytes` spells a token by itself."""

    def __init__(self, token_bytes: Callable[[int], bytes]) -> None:
        self._token_bytes = token_bytes
        self._characters = 0
        self._waiting: list[TokenLogprobs] = []
        """Tokens without any text until now."""
        self._spans: deque[tuple[int, list[TokenLogprobs]]] = deque()
        """Where each run of tokens with text in common ends, and the tokens, which begin where the run before
        it ends."""

    def add(self, token_id: int, told: LogprobsOut, characters: int) -> None:
        """The next token, with which so many characters became certain to be text."""
        top = tuple(self._logprob(other, logprob) for other, logprob in told.top)
        chosen = self._logprob(token_id, told.chosen)
        self._waiting.append(TokenLogprobs(chosen, top, self._characters))
        self.add_text(characters)

    def add_text(self, characters: int) -> None:
        """What was still held back of the tokens so far."""
        if characters:
            self._characters += characters
            self._spans.append((self._characters, self._waiting))
            self._waiting = []

    def take(self, start: int, end: int) -> tuple[TokenLogprobs, ...]:
        """The tokens of the characters from `start` to `end` that were not taken yet. What lies before them
        is no text of the answer, and neither are its tokens."""
        taken: list[TokenLogprobs] = []
        while self._spans:
            span_end, tokens = self._spans[0]
            if span_end > start:
                # The next piece of text may still have the rest of it, but it goes with the first.
                if tokens and tokens[0].offset >= end:
                    break
                taken += tokens
                if span_end > end:
                    self._spans[0] = (span_end, [])
                    break
            self._spans.popleft()
        return tuple(taken)

    def take_waiting(self) -> tuple[TokenLogprobs, ...]:
        """At the answer's end: the tokens that have no text."""
        taken, self._waiting = tuple(self._waiting), []
        return taken

    def _logprob(self, token_id: int, logprob: float) -> Logprob:
        data = self._token_bytes(token_id)
        return Logprob(token_id, data.decode("utf-8", "replace"), data, logprob)
