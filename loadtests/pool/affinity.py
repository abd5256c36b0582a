"""How much of agents' prompts several engines find in their prefix caches, by how requests are placed.

The agents have one system prompt, and in a session every prompt continues the last one; the engines are
simulated. One engine finds the most, because everything was computed there. Equal plans give equal results.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from statistics import median

import trio

from loadtests.pool.simulation import SimulatedServer, Timing, prepared, running_server, simulated
from scheduler.engine.scripted_answers import digest, scripted_token
from scheduler.engines.placement import Candidate, Place, least_seconds
from scheduler.events import Finished, Usage
from scheduler.prompt.preparation import Preparation
from scheduler.request import GenerationRequest, TokenPrompt

LEAST_OF_ONE = 0.95
"""The part of one engine's cached share that the pool's own placement must reach."""
TIMING = Timing(step_seconds=0.03, row_seconds=0.001, token_seconds=0.001)
"""About the times of a model of 8 billion weights in 4 bits on a laptop."""


@dataclass(frozen=True, slots=True)
class AffinityPlan:
    """Sizes in tokens. `gap_seconds`: the longest pause between a session's answer and its next prompt."""

    engines: int = 4
    sessions: int = 16
    turns: int = 6
    system_tokens: int = 2048
    own_tokens: int = 512
    growth_tokens: int = 256
    output_tokens: int = 48
    gap_seconds: float = 4.0
    slots: int = 8
    seed: int = 0


@dataclass(frozen=True, slots=True)
class Shares:
    """What one placement gave. `moves`: how often a session's request went to another engine than its
    last."""

    placement: str
    engines: int
    prompt_tokens: int
    cached_tokens: int
    requests: int
    moves: int
    session_seconds: float
    """The median session's time, gaps included."""

    @property
    def cached(self) -> float:
        return self.cached_tokens / self.prompt_tokens


class RoundRobin:
    """A `Place` that takes turns, in the order of numbers."""

    def __init__(self) -> None:
        self._last = ""

    def __call__(self, candidates: Sequence[Candidate], output_tokens: float, last: str | None) -> Candidate:
        names = sorted(candidates, key=lambda one: int(one.engine))
        later = [one for one in names if self._last and int(one.engine) > int(self._last)]
        chosen = (later or names)[0]
        self._last = chosen.engine
        return chosen


def least_loaded(candidates: Sequence[Candidate], output_tokens: float, last: str | None) -> Candidate:
    """Return the candidate with the fewest requests; of equal ones the first engine. This function is a
    `Place`."""
    return min(candidates, key=lambda one: (one.requests, int(one.engine)))


PLACEMENTS: Mapping[str, Callable[[], Place]] = {
    "least seconds": lambda: least_seconds,
    "least loaded": lambda: least_loaded,
    "round robin": RoundRobin,
}
"""What makes a new `Place` for each run, by name; the pool's own is the first."""


class _Counted:
    """A `Place` that counts how often a session moves."""

    def __init__(self, place: Place) -> None:
        self._place = place
        self.moves = 0

    def __call__(self, candidates: Sequence[Candidate], output_tokens: float, last: str | None) -> Candidate:
        chosen = self._place(candidates, output_tokens, last)
        self.moves += last is not None and chosen.engine != last
        return chosen


def run(plan: AffinityPlan, note: Callable[[str], None]) -> list[Shares]:
    """Return one engine's shares, then each placement's with all engines."""
    preparation = prepared()
    todo: list[tuple[str, int, Place]] = [("one engine", 1, least_seconds)]
    todo += [(name, plan.engines, make()) for name, make in PLACEMENTS.items()]
    found = []
    for name, engines, place in todo:
        found.append(simulated(partial(_shares, plan, preparation, name, engines, place)))
        note(f"{name}: {found[-1].cached:.3f}")
    return found


def complaints(found: Sequence[Shares]) -> Iterator[str]:
    """Yield what the pool's own placement misses. `found` begins with one engine, and then the pool's own
    placement."""
    one, own = found[:2]
    if own.cached < LEAST_OF_ONE * one.cached:
        yield (
            f"{own.engines} engines found {own.cached:.3f} of their prompts cached,"
            f" below {LEAST_OF_ONE} of one engine's {one.cached:.3f}"
        )


async def _shares(
    plan: AffinityPlan, preparation: Preparation, name: str, engines: int, place: Place
) -> Shares:
    counted = _Counted(place)
    usages: list[Usage] = []
    seconds: list[float] = []
    async with (
        running_server(preparation, TIMING, plan.slots, engines=engines, place=counted) as running,
        trio.open_nursery() as nursery,
    ):
        for number in range(plan.sessions):
            nursery.start_soon(_session, plan, running, number, usages, seconds)
    return Shares(
        name,
        engines,
        prompt_tokens=sum(usage.prompt_tokens for usage in usages),
        cached_tokens=sum(usage.cached_tokens for usage in usages),
        requests=len(usages),
        moves=counted.moves,
        session_seconds=median(seconds),
    )


async def _session(
    plan: AffinityPlan, running: SimulatedServer, number: int, usages: list[Usage], seconds: list[float]
) -> None:
    chance = random.Random(f"{plan.seed} {number}")
    words = partial(_tokens, vocabulary=running.vocabulary)
    prompt = words(random.Random(plan.seed), plan.system_tokens) + words(chance, plan.own_tokens)
    # Agents start one after another, as people start them.
    await trio.sleep(chance.uniform(0.0, plan.gap_seconds))
    began = trio.current_time()
    for turn in range(plan.turns):
        if turn:
            await trio.sleep(chance.uniform(0.0, plan.gap_seconds))
            prompt += words(chance, plan.growth_tokens)
        request = GenerationRequest(
            f"agent-{number}-{turn}",
            TokenPrompt(prompt),
            max_tokens=plan.output_tokens,
            ignore_eos=True,
            session=f"agent-{number}",
        )
        async with running.scheduler.stream(request) as stream:
            usages.extend([event.usage async for event in stream if isinstance(event, Finished)])
        # The scripted engine has answered this, token by token.
        known = digest(prompt)
        prompt += tuple(
            scripted_token(known, place, running.vocabulary) for place in range(plan.output_tokens)
        )
    seconds.append(trio.current_time() - began)


def _tokens(chance: random.Random, count: int, vocabulary: int) -> tuple[int, ...]:
    return tuple(chance.randrange(256, vocabulary - 64) for _ in range(count))
