"""Deaths of one to three engines of a pool at once, and how long streams paused while exactly one was
dead."""

from __future__ import annotations

import random
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import cycle

from loadtests.chaos.answers import Answer, Pause
from loadtests.chaos.strikes import Strike

MOST_AT_ONCE = 3
MOST_GAP_SECONDS = 2.0
"""Bound on a stream's pause while one engine of several is dead, of SIGKILL, and the others can take its
requests."""


MOST_UNEVEN_SECONDS = 1.0
TRUSTED_DELTAS = 4
"""A stream that has had this many deltas from an engine is trusted, and continues on another engine at
once."""


@dataclass(frozen=True, slots=True)
class Volley:
    """Engines struck at once: the moment, on trio's clock, and the moment when all were ready again.
    `deaths`: of the pool meanwhile, those by a planted poison included."""

    kinds: tuple[Strike, ...]
    struck_at: float
    back_at: float
    deaths: float
    missed: tuple[Strike, ...] = ()
    """Those of which no engine died in time."""

    @property
    def of_one(self) -> bool:
        """Return whether one engine was dead, of SIGKILL, and no other was meanwhile. A hung engine is found
        later, by a deadline of its own."""
        return self.kinds == (Strike.KILL,) and self.deaths == 1


def plan(moments: int, engines: int, kinds: Sequence[Strike], seed: int) -> list[tuple[Strike, ...]]:
    """Return of what the engines die at each moment. At every second moment one engine dies alone, in turn of
    SIGKILL and of another kind; at the others two or three die at once, where there are enough engines that
    one lives on."""
    chance = random.Random(seed)
    others = cycle(kind for kind in kinds if kind is not Strike.KILL)
    largest = max(1, min(MOST_AT_ONCE, engines - 1))
    planned: list[tuple[Strike, ...]] = []
    for moment in range(moments):
        if moment % 2 == 0 or largest == 1:
            planned.append((Strike.KILL,) if moment % 4 == 0 else (next(others),))
        else:
            planned.append(tuple(chance.choices(kinds, k=2 + moment // 2 % (largest - 1))))
    return planned


def even_streams(*undisturbed: Mapping[int, Answer]) -> set[int]:
    """Return the numbers of the questions whose answers come evenly: without a pause of MOST_UNEVEN_SECONDS
    in at least one undisturbed run. The server holds back tokens of the others, such as those of a tool
    call."""
    return {
        number
        for answers in undisturbed
        for number, answer in answers.items()
        if longest(answer.pauses) < MOST_UNEVEN_SECONDS
    }


def gaps(volleys: Iterable[Volley], answers: Collection[Answer]) -> list[float]:
    """Return the longest pause of any trusted stream in each volley of one engine, in seconds; 0 where none
    was long enough to be noted."""
    return [
        longest(pause for pause in _within(volley, answers) if pause.deltas >= TRUSTED_DELTAS)
        for volley in volleys
        if volley.of_one
    ]


def early_gap(volleys: Iterable[Volley], answers: Collection[Answer]) -> float:
    """Return the longest pause of a stream that had just begun at any of them: its prompt is computed
    again."""
    return longest(
        pause
        for volley in volleys
        if volley.of_one
        for pause in _within(volley, answers)
        if pause.deltas < TRUSTED_DELTAS
    )


def longest(pauses: Iterable[Pause]) -> float:
    """Return the seconds of the longest pause; 0 if there is none."""
    return max((pause.seconds for pause in pauses), default=0.0)


def _within(volley: Volley, answers: Iterable[Answer]) -> Iterator[Pause]:
    for answer in answers:
        for pause in answer.pauses:
            if pause.began < volley.back_at and pause.ended > volley.struck_at:
                yield pause
