"""Steps that are slow, and steps that hang, while clients leave.

A slow step ends before the ceiling of any step, and takes longer than a short step may. Where it computes,
its processor time shows that it does not hang. Where it waits, nothing shows that, so it must be a prefill
step of a size whose limit is the ceiling. The engine itself makes its step slow (`saboteur/`).
"""

from __future__ import annotations

import os
import random
import signal
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from enum import StrEnum
from itertools import islice
from typing import Final

import httpx
import trio

from loadtests.chaos.crowd import Crowd, Visit
from loadtests.chaos.questions import WORDS, Question
from loadtests.chaos.victim import Victim
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
_POLL_SECONDS = 0.05
_BEGIN_SECONDS = 60.0
"""The longest wait for a step that the order is for."""
_DEATH_SECONDS = CEILING_SECONDS + 20.0
_COME = 3
"""Questions that are sent during the step."""


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


@dataclass(frozen=True, slots=True)
class SlowMoment:
    """`missed`: no such step came, or it hung and its engine lived on."""

    step: SlowStep
    visits: tuple[Visit, ...]
    missed: bool = False


async def strike_slowly(
    step: SlowStep,
    questions: Mapping[Guest, Question],
    server: Victim,
    http: httpx.AsyncClient,
    crowd: Crowd,
    nursery: trio.Nursery,
) -> SlowMoment:
    """Return when the engine, or the next one, is ready again. `nursery` asks on for who stays."""
    visits = {guest: Visit(question) for guest, question in questions.items()}
    come: set[Guest] = set()

    def comes(*guests: Guest) -> None:
        for guest in guests:
            if guest not in come:
                come.add(guest)
                nursery.start_soon(visits[guest].ask, http, server.url)

    async def begin(guest: Guest) -> None:
        comes(guest)
        answer = visits[guest].answer
        while not (answer.stamps or answer.ended_at):  # noqa: ASYNC110 (another process)
            await trio.sleep(_POLL_SECONDS)

    def leave(when: Leaving) -> None:
        if when is step.leaving:
            for guest in step.leavers:
                visits[guest].leave()

    while not await server.ready(http) or (step.alone and await server.holdings(http)):  # noqa: ASYNC110
        await trio.sleep(_POLL_SECONDS)
    if step.work != "decode":
        # The long prompt was computed in the undisturbed runs.
        await http.delete(f"{server.url}/v1/cache")
    if not step.alone or step.leaving is Leaving.BEFORE:
        await begin(Guest.ANSWERED)
    if step.work == "decode":
        await begin(Guest.LONG)
        leave(Leaving.BEFORE)
    server.slow_down(step.order)
    comes(Guest.LONG)
    leave(Leaving.BEFORE)
    with trio.move_on_after(_BEGIN_SECONDS):
        while not server.slowed():
            crowd.due += not step.alone and crowd.in_flight < 2
            await trio.sleep(_POLL_SECONDS)
    pids, missed = server.engine_pids(), not server.slowed()
    comes(*Guest)
    crowd.due += _COME
    if not missed:
        await trio.sleep(SLOW_SECONDS / 4)
        leave(Leaving.AMID)
        with trio.move_on_after(_DEATH_SECONDS):
            # The server continues a stopped process when it ends it.
            while (step.hangs or server.slowed()) and server.engine_pids() == pids:  # noqa: ASYNC110
                await trio.sleep(_POLL_SECONDS)
        if step.hangs and server.engine_pids() == pids:
            missed = True
            with suppress(ProcessLookupError):
                os.kill(pids[0], signal.SIGKILL)
    leave(Leaving.AFTER)
    server.withdraw()
    while not await server.ready(http):  # noqa: ASYNC110 (another process)
        await trio.sleep(_POLL_SECONDS)
    return SlowMoment(step, tuple(visits.values()), missed)
