"""Agents' days as lists of turns: who asks what, when, and what each then waits for. Seeded."""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from heapq import heappop, heappush
from math import log
from typing import TypeAlias

_TURN_SECONDS = 2.0
"""Time from a request to the end of its answer."""


@dataclass(frozen=True, slots=True)
class Turn:
    """One request. Its prompt is `system_tokens` of the system prompt `system`, then `own_tokens` of
    `stream`, which its answer continues. `session` is None if the client names none."""

    at: float
    ends: float
    session: str | None
    system: int
    system_tokens: int
    stream: int
    own_tokens: int
    answer_tokens: int
    kind: str
    """What it waits for afterwards: the tool, or `stop`."""
    last: bool


@dataclass(frozen=True, slots=True)
class Wait:
    """A kind of pause: its share of a session's pauses, and its length, lognormal."""

    kind: str
    share: float
    median_seconds: float
    sigma: float

    def drawn(self, chance: random.Random) -> float:
        return chance.lognormvariate(log(self.median_seconds), self.sigma)


@dataclass(frozen=True, slots=True)
class Agents:
    """A closed population: another session follows each that ends. `period`: seconds between the moments at
    which all of them wake together; 0: each wakes by itself."""

    count: int
    turns: tuple[int, int]
    waits: tuple[Wait, ...]
    system_tokens: int = 6000
    systems: int = 1
    own_tokens: int = 2000
    growth_tokens: int = 600
    answer_tokens: int = 200
    named: bool = True
    period: float = 0.0
    rest_seconds: float = 10.0
    """Mean time from a session's end to its successor's first request."""


Trace: TypeAlias = list[Turn]

READ = Wait("read", 0.6, 0.5, 0.8)
EDIT = Wait("edit", 0.3, 3.0, 0.8)
TESTS = Wait("tests", 0.1, 120.0, 0.5)
PERSON = Wait("stop", 1.0, 90.0, 1.2)
ONCE = Agents(8, (1, 1), (PERSON,), system_tokens=0, own_tokens=6000, named=False, rest_seconds=4.0)
FARM = Agents(48, (12, 40), (READ, EDIT, TESTS))

POPULATIONS: Mapping[str, tuple[Agents, ...]] = {
    "farm": (FARM,),
    "bursts": (Agents(48, (20, 60), (Wait("cron", 1.0, 1.0, 0.5),), systems=4, period=60.0),),
    "paces": (
        Agents(16, (30, 80), (Wait("quick", 1.0, 2.0, 0.5),)),
        Agents(48, (10, 20), (Wait("slow", 1.0, 180.0, 0.3),)),
    ),
    "long": (Agents(24, (60, 80), (READ, EDIT, TESTS), growth_tokens=1300),),
    "polluted": (Agents(32, (12, 40), (READ, EDIT, TESTS)), ONCE),
    "unnamed": (Agents(48, (12, 40), (READ, EDIT, TESTS), named=False),),
    "short": (Agents(24, (1, 4), (EDIT,), systems=24, rest_seconds=30.0),),
    "mixed": (
        Agents(24, (12, 40), (READ, EDIT, TESTS), systems=3),
        Agents(24, (3, 15), (PERSON,), system_tokens=1500, own_tokens=500, rest_seconds=60.0),
        ONCE,
    ),
}
"""Agents by the trace's name."""


def trace(name: str, seconds: float, seed: int = 0) -> Trace:
    """Return a named population's turns in the order of their times."""
    turns = [
        turn
        for number, agents in enumerate(POPULATIONS[name])
        for turn in _turns(agents, seconds, random.Random(f"{seed}/{name}/{number}"), 1000 * number)
    ]
    return sorted(turns, key=lambda turn: (turn.at, turn.stream))


def _turns(agents: Agents, seconds: float, chance: random.Random, first: int) -> Iterator[Turn]:
    # (when, place, turns left, of the session: its number, its own tokens)
    due = [(chance.uniform(0.0, 30.0), place, 0, -1, 0) for place in range(agents.count)]
    due.sort()
    streams = first
    while due and due[0][0] < seconds:
        at, place, left, stream, own = heappop(due)
        if not left:
            stream, left, own = streams, chance.randint(*agents.turns), agents.own_tokens
            streams += 1
        wait = chance.choices(agents.waits, [one.share for one in agents.waits])[0]
        ends = at + _TURN_SECONDS
        yield Turn(
            at,
            ends,
            f"agent-{stream}" if agents.named else None,
            first + stream % agents.systems,
            agents.system_tokens,
            stream,
            own,
            agents.answer_tokens,
            wait.kind if left > 1 else "stop",
            left == 1,
        )
        pause = wait.drawn(chance) if left > 1 else chance.expovariate(1 / agents.rest_seconds)
        again = ends + pause
        if agents.period and left > 1:
            again = ends + agents.period - ends % agents.period + pause
        heappush(due, (again, place, left - 1, stream, own + agents.answer_tokens + agents.growth_tokens))
