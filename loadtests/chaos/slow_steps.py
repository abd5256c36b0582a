"""Steps that are slow, and steps that hang, while clients leave: which ones, in which order. Plain data.

A slow step ends before the ceiling of any step, and takes longer than a short step may. Where it computes,
its processor time shows that it does not hang. Where it waits, nothing shows that, so it must be a prefill
step of a size whose limit is the ceiling. The engine itself makes its step slow (`saboteur/`).
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum
from itertools import islice
from typing import Final

from loadtests.chaos.questions import WORDS, Question
from scheduler.shared.messages import StepWork

FLOOR_SECONDS: Final = 6.0
CEILING_SECONDS: Final = 16.0
SLOW_SECONDS: Final = 10.0
"""A fifth of what a server allows by default, or less: a run has dozens of these steps."""
LEAST_PREFILL_TOKENS: Final = 512
"""The size of a prefill step that is made slow is at least this: larger than those of the other questions."""
_LONG_WORDS: Final = 300
_ANSWER_TOKENS: Final = 128
"""Enough that no answer ends before its client leaves."""


class Slowness(StrEnum):
    COMPUTES = "computes"
    WAITS = "waits"
    HANGS = "hangs"


class Leaving(StrEnum):
    """When clients leave. `AMID` is before the limit of a short step."""

    BEFORE = "before"
    AMID = "amid"
    AFTER = "after"


class Guest(StrEnum):
    """The two clients that come for such a step, and may leave."""

    LONG = "long"
    """Its prompt is long: it is computed in a prefill step, and arrives during a step of decoding."""
    ANSWERED = "answered"
    """Its answer is long: it decodes, and arrives during a step of prefill."""


@dataclass(frozen=True, slots=True)
class SlowStep:
    how: Slowness
    work: StepWork
    leaving: Leaving
    leavers: tuple[Guest, ...]

    @property
    def hangs(self) -> bool:
        return self.how is Slowness.HANGS

    @property
    def alone(self) -> bool:
        """Return whether no row may decode beside the long prompt."""
        return self.work == "prefill"

    @property
    def order(self) -> str:
        """Return what the engine reads."""
        least_tokens = LEAST_PREFILL_TOKENS if self.alone else 0
        return f"{self.how} {SLOW_SECONDS} {least_tokens} {self.work}"

    def __str__(self) -> str:
        return f"{self.work} that {self.how}, {' and '.join(self.leavers)} leaving {self.leaving}"


_WORKS: Final[tuple[tuple[Slowness, StepWork], ...]] = (
    (Slowness.COMPUTES, "prefill"),
    (Slowness.COMPUTES, "decode"),
    (Slowness.COMPUTES, "decode and prefill"),
    (Slowness.WAITS, "prefill"),
    (Slowness.HANGS, "prefill"),
    (Slowness.HANGS, "decode"),
    (Slowness.HANGS, "decode and prefill"),
)


def slow_steps(count: int, seed: int) -> list[SlowStep]:
    """Return `count` steps: seven in a row are of every work and slowness, and three times seven have clients
    that leave at every moment of each. Equal seeds give equal ones."""
    return list(islice(_endless(random.Random(f"slow {seed}")), count))


def _endless(chance: random.Random) -> Iterator[SlowStep]:
    while True:
        moments = {kind: chance.sample(list(Leaving), len(Leaving)) for kind in _WORKS}
        for turn in range(len(Leaving)):
            for how, work in chance.sample(_WORKS, len(_WORKS)):
                leaving = moments[how, work][turn]
                # Of those who leave before it, none has a part in the step.
                leavers = (
                    (Guest.ANSWERED,)
                    if leaving is Leaving.BEFORE
                    else chance.choice([(Guest.LONG,), (Guest.ANSWERED,), (Guest.LONG, Guest.ANSWERED)])
                )
                yield SlowStep(how, work, leaving, leavers)


def guests(first: int, steps: int, seed: int) -> list[dict[Guest, Question]]:
    """Return the questions of both clients of each step, numbered from `first`."""
    return [
        {
            guest: _question(first + 2 * step + place, guest, random.Random(f"guests {seed} {step} {guest}"))
            for place, guest in enumerate(Guest)
        }
        for step in range(steps)
    ]


def _question(number: int, guest: Guest, chance: random.Random) -> Question:
    words = chance.choices(WORDS, k=_LONG_WORDS if guest is Guest.LONG else 4)
    body = {
        "messages": [{"role": "user", "content": f"{number} " + " ".join(words)}],
        "max_tokens": _ANSWER_TOKENS,
        "min_tokens": _ANSWER_TOKENS,
        "temperature": 0,
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    return Question(number, body, greedy=True)
