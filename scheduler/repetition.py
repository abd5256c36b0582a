"""Says when an answer repeats one phrase without end: its last tokens are an exact cycle.

A model that has come into such a cycle rarely leaves it, and the row would compute it until `max_tokens`.
"""

from __future__ import annotations

import sys
from array import array
from dataclasses import dataclass

CHECKED_TOKENS = 16
"""Tokens from one look at an answer to the next."""
_SOUGHT_TOKENS = 8


@dataclass(frozen=True, slots=True)
class Repetition:
    """An answer is over when a phrase of `least_phrase` to `most_phrase` tokens has come at least `copies`
    times in a row, the last time at its end, over at least `span` tokens."""

    span: int
    least_phrase: int = 1
    most_phrase: int = 256
    copies: int = 8

    def ends(self, tokens: array[int]) -> bool:
        """Return whether an answer of these tokens is over. It depends on nothing else, so that neither a
        resume nor drafts move the end.

        Where the last few tokens have not come before it takes 1 us; where they have come all the time, but
        in no cycle, some 4 us for each phrase.
        """
        count, width = len(tokens), tokens.itemsize
        if count % CHECKED_TOKENS or count < self.span:
            return False
        answer = tokens[-max(self.span, self.most_phrase * self.copies) :].tobytes()
        # Whatever the phrase, a cycle has its last tokens once more, a phrase before its end.
        sought = answer[-min(_SOUGHT_TOKENS, self.least_phrase * (self.copies - 1)) * width :]
        place, size = len(answer) - len(sought), len(answer)
        first = place - self.most_phrase * width
        while (place := answer.rfind(sought, max(0, first), place + len(sought) - 1)) >= 0:
            shift = size - len(sought) - place
            phrase = shift // width
            span = max(self.span, phrase * self.copies) * width
            if shift % width or phrase < self.least_phrase or span > size:
                continue
            if answer.endswith(answer[size - span : size - shift]):
                return True
        return False


NEVER = Repetition(sys.maxsize)
"""No answer is so long."""
