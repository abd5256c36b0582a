"""How long a stream was silent for no reason of its own. Pure functions."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from loadtests.chaos.answers import Answer, Pause

Span = tuple[float, float]
"""From when until when, on trio's clock."""


def longest_wait(answers: Iterable[Answer], away: Sequence[Span] = ()) -> float:
    """Return the longest silence of a stream in seconds, before its first words or after; 0 if there is none.
    What lies in `away`, when the engine could not answer, does not count."""
    return max((_seconds(pause, away) for answer in answers for pause in _silences(answer)), default=0.0)


def _silences(answer: Answer) -> list[Pause]:
    return [*([] if answer.first_words is None else [answer.first_words]), *answer.pauses]


def _seconds(pause: Pause, away: Iterable[Span]) -> float:
    seconds, at = pause.seconds, pause.began
    for began, ended in sorted(away):
        began, ended = max(began, at), min(ended, pause.ended)
        if ended > began:
            seconds -= ended - began
            at = ended
    return seconds
