"""Speculation that drafts in every step: costs nothing by its own numbers, and knows what rows will write."""

from __future__ import annotations

import random
from collections.abc import Iterable, Mapping, Sequence

from scheduler.engine.drafts.speculation import Draft, DraftTokens, Proposal, Speculation
from scheduler.engine.drafts.verify_costs import VerifyCosts
from scheduler.engine.sequence import EngineSequence

_MOST_TOKENS = 9


class Free(VerifyCosts):
    """A step with drafts costs what one without does."""

    def ratio(self, rows: int, drafted: int) -> float:
        return 1.0


def eager() -> Speculation:
    """As in an engine, but drafting wherever it has a source that was not often wrong."""
    return Speculation(Free())


class Guesses(Speculation):
    """For most rows in most steps some of the tokens that they wrote in another run, of any number, of which
    one may be another one."""

    def __init__(self, answers: Mapping[int, Sequence[int]], seed: int = 0) -> None:
        super().__init__(Free())
        self._answers = answers
        self._random = random.Random(seed)

    def proposals(
        self, rows: Iterable[EngineSequence], forced: DraftTokens, has_pending: bool
    ) -> list[Proposal]:
        guesses = ((row, self._guess(row, has_pending)) for row in rows)
        return [
            Proposal(Draft(row.request_id, guess, "long_match"), 1.0, has_pending)
            for row, guess in guesses
            if guess
        ]

    def _guess(self, row: EngineSequence, has_pending: bool) -> tuple[int, ...]:
        start = row.generated_tokens + has_pending
        guess = list(self._answers[row.request_id][start : start + self._random.randrange(_MOST_TOKENS)])
        if guess and self._random.random() < 0.5:
            guess[self._random.randrange(len(guess))] ^= 1
        return tuple(guess)
