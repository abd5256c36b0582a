"""`penstock bench dev chaos`: ask questions twice undisturbed, then again while engines die."""

from __future__ import annotations

import random
import sys
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial

import click
import httpx
import trio

from loadtests.chaos import findings
from loadtests.chaos.crowd import Crowd
from loadtests.chaos.findings import Findings, longest_pause
from loadtests.chaos.questions import Question, poison, questions
from loadtests.chaos.slow_steps import (
    CEILING_SECONDS,
    FLOOR_SECONDS,
    Guest,
    SlowMoment,
    SlowStep,
    guests,
    slow_steps,
    strike_slowly,
)
from loadtests.chaos.strikes import Strike, kinds, strike
from loadtests.chaos.victim import Victim, victim
from loadtests.client import default_client

_SERVER = ("--max-slots", "8")
_CLIENTS = 12
_STALL_SECONDS = 3.0
"""A hung engine must be found within seconds."""
_AHEAD, _BUSY = 4, 2
"""How many questions may be sent ahead of the deaths' progress, and how many are in flight at a death."""
_BUSY_SECONDS = 2.5
"""The longest wait from a death's share of the questions to the death."""
_POLL_SECONDS = 0.02
_REQUEST_SECONDS = 600.0
_HELD_SECONDS = 10.0
"""The longest time from the last answer until nothing is held for any request."""
_DEATH_SECONDS = 40.0
"""The longest wait from a strike to the engine's death; then the engine is killed, and the run has failed."""
_COUNTERS = {
    "deaths": "penstock_engine_deaths_total",
    "requests that resumed on another engine": "penstock_resumed_requests_total",
    "requests failed as poison": "penstock_poisonous_requests_total",
    "late tokens dropped": "penstock_late_tokens_total",
    "requests whose client left": 'penstock_requests_total{outcome="cancelled"}',
}


@dataclass(frozen=True, slots=True)
class Plan:
    """Equal plans send the same questions and strike the same ways; only the moments differ."""

    requests: int = 200
    deaths: int = 20
    seed: int = 0
    poison: bool = True
    arguments: tuple[str, ...] = ()
    """Further options of the server."""
    slow_steps: int = 0
    """Moments, beside `deaths`, at which a step is slow or hangs, and clients leave."""
    kinds: tuple[Strike, ...] = tuple(kinds())

    def moments(self, chance: random.Random) -> list[Strike | SlowStep]:
        """Return the strikes in their order. A device's error may be a timeout, after which prompts are
        computed in smaller chunks: all of those come last, as no step of a large one would come behind
        them."""
        deaths = [self.kinds[number % len(self.kinds)] for number in range(self.deaths)]
        to_come: list[Strike | SlowStep] = [*deaths, *slow_steps(self.slow_steps, self.seed)]
        chance.shuffle(to_come)
        return sorted(to_come, key=lambda one: one is Strike.DEVICE)


async def run(plan: Plan, note: Callable[[str], None]) -> Findings:
    """Run the plan. Raise LaunchError if the server does not start."""
    stall, floor = (CEILING_SECONDS, FLOOR_SECONDS) if plan.slow_steps else (_STALL_SECONDS, None)
    options = (*_SERVER, "--stall-seconds", f"{stall:g}", *plan.arguments)
    async with (
        victim(options, note, floor_seconds=floor) as server,
        default_client(_REQUEST_SECONDS)() as http,
    ):
        asked = questions(plan.requests, plan.seed)
        visitors = guests(plan.requests, plan.slow_steps, plan.seed)
        everyone = [*asked, *(question for pair in visitors for question in pair.values())]
        undisturbed = await Crowd(http, server.url, everyone, _CLIENTS).ask_all()
        control = await Crowd(http, server.url, everyone, _CLIENTS).ask_all()
        note(f"{len(everyone)} questions were answered twice, undisturbed")
        before = await server.metrics(http)
        if plan.poison:
            asked.insert(len(asked) // 3, poison(len(everyone)))
        began = trio.current_time()
        crowd = Crowd(http, server.url, asked, _CLIENTS)
        struck, missed, slow = await _under_fire(plan, server, http, crowd, visitors, note)
        seconds = trio.current_time() - began
        visits = [visit for moment in slow for visit in moment.visits]
        left = {visit.question.number: visit.answer for visit in visits if visit.left}
        disturbed = crowd.answers | {one.question.number: one.answer for one in visits if not one.left}
        asked += [visit.question for visit in visits]
        return replace(
            findings.compare(asked, undisturbed, control, disturbed, left),
            strikes=dict(sorted(Counter(struck).items())),
            missed=missed + [str(moment.step) for moment in slow if moment.missed],
            slow_steps=dict(sorted(Counter(f"{one.step.work}, {one.step.how}" for one in slow).items())),
            hung=struck.count(Strike.STOP) + sum(moment.step.hangs and not moment.missed for moment in slow),
            held=await _held(server, http),
            server=await _counts(server, http, before),
            usual_pause_seconds=longest_pause([*undisturbed.values(), *control.values()]),
            longest_pause_seconds=longest_pause(disturbed.values()),
            seconds=seconds,
        )


async def _counts(server: Victim, http: httpx.AsyncClient, before: Mapping[str, float]) -> dict[str, float]:
    after = await server.metrics(http)
    counts = {name: after.get(key, 0.0) - before.get(key, 0.0) for name, key in _COUNTERS.items()}
    for sample, value in sorted(after.items()):
        if sample.startswith("penstock_engine_restarts_total") and value:
            cause = sample.partition('cause="')[2].partition('"')[0]
            counts[f"deaths reported as {cause}"] = value
    return counts | {"share of the KV budget at the end": after["penstock_kv_cache_share"]}


async def _under_fire(
    plan: Plan,
    server: Victim,
    http: httpx.AsyncClient,
    crowd: Crowd,
    visitors: Sequence[Mapping[Guest, Question]],
    note: Callable[[str], None],
) -> tuple[list[str], list[str], list[SlowMoment]]:
    """Ask all questions while engines die, with the deaths spread evenly over the questions. Return what
    struck, which of it no engine died of, and the slow steps."""
    chance = random.Random(plan.seed)
    to_come = plan.moments(chance)
    struck: list[str] = []
    missed: list[str] = []
    slow: list[SlowMoment] = []
    share = len(crowd.asked) / max(1, len(to_come))

    async def strikes() -> None:
        for number, moment in enumerate(to_come):
            # The rest of the share is for the strike, should these be answered by then.
            crowd.due = max(crowd.due, int(number * share + min(_AHEAD, share / 2)))
            await trio.sleep(chance.uniform(0.0, _BUSY_SECONDS))
            began = trio.current_time()
            if isinstance(moment, SlowStep):
                guests_ = visitors[len(slow)]
                slow.append(await strike_slowly(moment, guests_, server, http, crowd, nursery))
            else:
                struck.append(moment.value)
                missed.extend([] if await _strike(moment, server, http, crowd) else [moment.value])
            note(f"{number + 1} of {len(to_come)}: {moment}; {trio.current_time() - began:.1f} s")
        crowd.due = len(crowd.asked)

    crowd.due = 0
    async with trio.open_nursery() as nursery:
        nursery.start_soon(strikes)
        await crowd.ask_all()
    return struck, missed, slow


async def _held(server: Victim, http: httpx.AsyncClient) -> dict[str, float]:
    """Return what is still held for requests, of which none is left."""
    until = trio.current_time() + _HELD_SECONDS
    while (held := await server.holdings(http)) and trio.current_time() < until:  # noqa: ASYNC110 (another process)
        await trio.sleep(_POLL_SECONDS)
    return held


async def _strike(how: Strike, server: Victim, http: httpx.AsyncClient, crowd: Crowd) -> bool:
    """Strike, and return when the engine has died and the next one is ready: whether it died of that."""
    while not await server.ready(http):  # noqa: ASYNC110 (another process)
        await trio.sleep(_POLL_SECONDS)
    # The death of an engine that has begun no answer shows nothing.
    while crowd.in_flight < _BUSY or not crowd.under_way:
        if crowd.in_flight < _BUSY:
            if crowd.due >= len(crowd.asked):
                break
            crowd.due += 1
        await trio.sleep(_POLL_SECONDS)
    (pid,) = server.engine_pids()
    _try(pid, how)
    insist_at, has_died = trio.current_time() + _DEATH_SECONDS, True
    while pid in server.engine_pids() or not await server.ready(http):
        # Some kinds take effect in a step, and so need a client that requests one.
        crowd.due += crowd.in_flight < 1
        if pid in server.engine_pids() and trio.current_time() > insist_at:
            has_died = False
            _try(pid, Strike.KILL)
        await trio.sleep(_POLL_SECONDS)
    return has_died


def _try(pid: int, kind: Strike) -> None:
    # The engine may have died of something else at this moment.
    with suppress(ProcessLookupError):
        strike(pid, kind)


@click.command()
@click.option("--requests", default=200, show_default=True)
@click.option(
    "--deaths", default=24, show_default=True, help="Engine deaths, of all kinds, at random moments."
)
@click.option("--seed", default=0, show_default=True, help="Of the questions and of the order of deaths.")
@click.option(
    "--slow-steps",
    default=7,
    show_default=True,
    help="Steps beside the deaths that are slow or hang while clients leave.",
)
def chaos(requests: int, deaths: int, seed: int, slow_steps: int) -> None:
    """Kill engines at random moments; compare every answer with an undisturbed run's. One request is planted
    that crashes every engine."""
    found = trio.run(run, Plan(requests, deaths, seed, slow_steps=slow_steps), partial(click.echo, err=True))
    click.echo("\n".join(found.lines()))
    sys.exit(1 if list(found.complaints()) else 0)
