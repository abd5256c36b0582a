"""How long a stream was silent for no reason of its own. Pure functions."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from loadtests.chaos.answers import Answer, Pause

Span = tuple[float, float]
"""From when until when, on trio's clock."""


USUAL_SHARE = 0.9


def longest_waits(answers: Mapping[int, Answer], away: Sequence[Span] = ()) -> dict[int, float]:
    """Return the longest silence of each stream in seconds, before its first words or after, by number. What
    lies in `away`, when the engine could not answer, does not count; and a silence with several of those
    counts as that number of waits, for each may have ended what had begun to be computed."""
    silences = {number: _silences(answer) for number, answer in answers.items()}
    return {
        number: max(_seconds(pause, away) for pause in pauses)
        for number, pauses in silences.items()
        if pauses
    }


def usual(waits: Iterable[float]) -> float:
    """Return how long at most USUAL_SHARE of the streams waited: the longest wait of all is the machine's."""
    ordered = sorted(waits)
    return ordered[int(USUAL_SHARE * (len(ordered) - 1))] if ordered else 0.0


def _silences(answer: Answer) -> list[Pause]:
    return [*([] if answer.first_words is None else [answer.first_words]), *answer.pauses]


def _seconds(pause: Pause, away: Iterable[Span]) -> float:
    seconds, at, times = pause.seconds, pause.began, 0
    for began, ended in sorted(away):
        began, ended = max(began, at), min(ended, pause.ended)
        if ended > began:
            times += began > at or not times
            seconds -= ended - began
            at = ended
    return seconds / max(1, times)
