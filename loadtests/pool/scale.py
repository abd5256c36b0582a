"""Tokens/s by the number of engines, and what a streamed token costs the server: whole servers, one after
another.

Scripted engines with long steps need little of the machine, so that this measures the server: whether it
keeps all slots busy. Clients are a closed loop, one for each slot.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import count
from statistics import median

import httpx
import trio

from loadtests.chaos.answers import ask
from loadtests.chaos.questions import Question
from loadtests.chaos.victim import Victim, victim
from loadtests.processes import cpu_seconds

LEAST_OF_LINEAR = 0.95
_POLL_SECONDS = 0.1
_WORDS = ("harbour", "lantern", "copper", "meadow", "signal", "orchard", "granite", "anchor")


@dataclass(frozen=True, slots=True)
class ScalePlan:
    """`engines`: the numbers to measure, in each of `rounds` turns. Each measurement takes `seconds`, after
    `warm_up_seconds` in which clients come to ask at different times."""

    engines: tuple[int, ...] = (1, 2, 4)
    step_seconds: float = 0.25
    slots: int = 8
    seconds: float = 20.0
    warm_up_seconds: float = 6.0
    rounds: int = 1


@dataclass(frozen=True, slots=True)
class Scaled:
    """One measurement: the tokens of `seconds`, and the server process's own processor time meanwhile."""

    engines: int
    tokens: float
    seconds: float
    cpu_seconds: float
    failures: Sequence[str] = field(default=())
    """What went wrong with each answer that was not whole, in the warm-up, too."""

    @property
    def tokens_per_second(self) -> float:
        return self.tokens / self.seconds

    @property
    def cpu_seconds_per_token(self) -> float:
        return self.cpu_seconds / max(1.0, self.tokens)


@dataclass(frozen=True, slots=True)
class Scale:
    """Medians over the rounds, with one number of engines. `linear`: the tokens/s of an engine, divided by
    those of an engine where there are the fewest."""

    engines: int
    tokens_per_second: float
    cpu_seconds_per_token: float
    linear: float


def scales(found: Sequence[Scaled]) -> list[Scale]:
    """Return one for each number of engines, ascending."""
    rates = _medians(found, lambda one: one.tokens_per_second)
    costs = _medians(found, lambda one: one.cpu_seconds_per_token)
    fewest = min(rates)
    return [
        Scale(engines, rate, costs[engines], rate / engines / (rates[fewest] / fewest))
        for engines, rate in sorted(rates.items())
    ]


def _medians(found: Sequence[Scaled], figure: Callable[[Scaled], float]) -> Mapping[int, float]:
    return {
        engines: median(figure(one) for one in found if one.engines == engines)
        for engines in {one.engines for one in found}
    }


def complaints(found: Sequence[Scaled]) -> Iterator[str]:
    """Yield each number of engines that gives too little, and the answers that failed."""
    for scale in scales(found):
        if scale.linear < LEAST_OF_LINEAR:
            yield f"{scale.engines} engines gave {scale.linear:.3f} of linear, below {LEAST_OF_LINEAR}"
    if failures := [failure for one in found for failure in one.failures]:
        yield f"{len(failures)} answers failed: {failures[0]}"


async def run(plan: ScalePlan, note: Callable[[str], None]) -> list[Scaled]:
    """Measure in turns: 1, 2, 4, 1, 2, 4. Raise LaunchError if a server does not start."""
    found = []
    for _ in range(plan.rounds):
        for engines in plan.engines:
            one = await _measure(plan, engines)
            found.append(one)
            cost = 1e6 * one.cpu_seconds_per_token
            note(
                f"engines {engines}: {one.tokens_per_second:.1f} tokens/s,"
                f" {cost:.0f} µs of the server a token"
            )
    return found


async def _measure(plan: ScalePlan, engines: int) -> Scaled:
    arguments = (
        *("--engine", "scripted", "--scripted", f"step_seconds={plan.step_seconds:g}"),
        *("--max-slots", str(plan.slots), "--engines", str(engines)),
    )
    failures: list[str] = []
    async with (
        victim(arguments, sabotage=False) as server,
        httpx.AsyncClient(timeout=600.0, limits=httpx.Limits(max_connections=None), trust_env=False) as http,
        trio.open_nursery() as nursery,
    ):
        while await server.ready_engines(http) < engines:  # noqa: ASYNC110 (another process)
            await trio.sleep(_POLL_SECONDS)
        for number in range(plan.slots * engines):
            nursery.start_soon(_client, http, server.url, number, failures)
        await trio.sleep(plan.warm_up_seconds)
        before = await _now(http, server)
        await trio.sleep(plan.seconds)
        after = await _now(http, server)
        nursery.cancel_scope.cancel()
    tokens, seconds, cpu = (late - early for early, late in zip(before, after, strict=True))
    return Scaled(engines, tokens, seconds, cpu, failures)


async def _client(http: httpx.AsyncClient, url: str, number: int, failures: list[str]) -> None:
    chance = random.Random(number)
    for turn in count():
        content = f"{number} {turn} " + " ".join(chance.choices(_WORDS, k=12))
        body = {
            "messages": [{"role": "user", "content": content}],
            "max_tokens": chance.randint(32, 96),
            "temperature": 0,
            "ignore_eos": True,
            "stream": True,
        }
        answer = await ask(http, url, Question(turn, body, greedy=True))
        if not answer.whole or answer.disorder:
            failures.append(answer.error or answer.disorder or "cut off")
            await trio.sleep(1.0)


async def _now(http: httpx.AsyncClient, server: Victim) -> tuple[float, float, float]:
    """Return the tokens until now, the time, and the server's processor time."""
    tokens = (await server.metrics(http))["penstock_generated_tokens_total"]
    return tokens, trio.current_time(), cpu_seconds(server.process.pid)
