"""The chaos run: ask the questions twice undisturbed, then again while engines die."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace

import httpx
import trio

from loadtests.chaos import findings, volleys
from loadtests.chaos.answers import ask
from loadtests.chaos.crowd import Crowd
from loadtests.chaos.findings import Findings
from loadtests.chaos.questions import JSON_FORMAT, Question, poison, questions
from loadtests.chaos.slow_steps import CEILING_SECONDS, FLOOR_SECONDS, Guest, SlowStep, guests, slow_steps
from loadtests.chaos.slow_strike import SlowMoment, strike_slowly
from loadtests.chaos.strikes import Strike, kinds, strike
from loadtests.chaos.victim import Victim, victim
from loadtests.chaos.volleys import Volley
from loadtests.chaos.waits import Span, longest_waits, usual

SERVER = (
    *("--stall-seconds", "3"),
    *("--max-slots", "8"),
)
"""The server must find a hung engine within seconds; the saboteur lets it allow more engine deaths."""
_CLIENTS = 12
_CLIENTS_AN_ENGINE = 6
_PATIENT = ("--stall-seconds", "6")
"""Options for several engines on few cores: where the machine pauses all of them, none must be declared
hung."""
_SLOW = ("--stall-seconds", str(CEILING_SECONDS))
_AHEAD = 4
"""How many questions may be sent ahead of the deaths' progress."""
_BUSY_SECONDS = 2.5
"""The longest wait from a death's share of the questions to the death."""
_POLL_SECONDS = 0.02
_LOOK_SECONDS = 0.1
_LATE_SECONDS = 1.0
_HELD_SECONDS = 10.0
"""The longest time from the last answer until nothing is held for any request."""
_DEATH_SECONDS = 40.0
"""The longest wait from a strike to the engine's death; then the engine is killed, and the run has failed."""


@dataclass(frozen=True, slots=True)
class Plan:
    """Equal plans send the same questions and strike the same ways; only the moments differ."""

    requests: int = 200
    deaths: int = 20
    seed: int = 0
    poison: bool = True
    arguments: tuple[str, ...] = ()
    """Further options of the server."""
    engines: int = 1
    """Number of engines. With several, `deaths` are the moments at which one to three of them die."""
    slow_steps: int = 0
    """Moments, beside `deaths`, at which a step of the one engine is slow or hangs, and clients leave."""

    @property
    def moments(self) -> int:
        return self.deaths + self.slow_steps

    @property
    def clients(self) -> int:
        """Return the number of clients: for several engines as many as their slots take while one of four is
        dead."""
        return _CLIENTS if self.engines == 1 else _CLIENTS_AN_ENGINE * self.engines


async def run(plan: Plan, note: Callable[[str], None]) -> Findings:
    """Run the plan. Raise LaunchError if the server does not start."""
    timeout = httpx.Timeout(600.0)
    limits = httpx.Limits(max_connections=None)
    async with (
        victim(
            [*SERVER, *_pool(plan), *(_SLOW if plan.slow_steps else ()), *plan.arguments],
            floor_seconds=FLOOR_SECONDS if plan.slow_steps else None,
        ) as server,
        httpx.AsyncClient(timeout=timeout, limits=limits, trust_env=False) as http,
    ):
        while not await _all_ready(plan, server, http):  # noqa: ASYNC110 (another process)
            # Engines that load take the processors from those that answer.
            await trio.sleep(_POLL_SECONDS)
        asked = questions(plan.requests, plan.seed, await _knows_schemas(http, server.url))
        visitors = guests(plan.requests, plan.slow_steps, plan.seed)
        everyone = [*asked, *(question for pair in visitors for question in pair.values())]
        began = trio.current_time()
        undisturbed = await Crowd(http, server.url, everyone, plan.clients).ask_all()
        note(f"undisturbed: {trio.current_time() - began:.1f} s")
        control = await Crowd(http, server.url, everyone, plan.clients).ask_all()
        before = await server.metrics(http)
        if plan.poison:
            asked.insert(len(asked) // 3, poison(len(everyone)))
        began = trio.current_time()
        crowd = Crowd(http, server.url, asked, plan.clients)
        fire = await _under_fire(plan, server, http, crowd, visitors, note)
        shots = fire.shots
        seconds = trio.current_time() - began
        after = await server.metrics(http)
        visits = [visit for moment in fire.slow for visit in moment.visits]
        left = {visit.question.number: visit.answer for visit in visits if visit.left}
        stayed = {visit.question.number: visit.answer for visit in visits if not visit.left}
        disturbed = crowd.answers | stayed
        asked += [visit.question for visit in visits]
        found = findings.compare(asked, undisturbed, control, disturbed, left)
        counts = {name: after.get(key, 0.0) - before.get(key, 0.0) for name, key in _COUNTERS.items()}
        counts |= {
            f"deaths reported as {_cause(sample)}": value
            for sample, value in sorted(after.items())
            if sample.startswith("penstock_engine_restarts_total") and value
        }
        least = await server.metrics(http, combine=min)
        counts["share of the KV budget at the end"] = least["penstock_kv_cache_share"]
        even = volleys.even_streams(undisturbed, control)
        pauses = [answers[number].pauses for answers in (undisturbed, control) for number in even]
        streams = [answer for number, answer in crowd.answers.items() if number in even]
        innocent = {number: answer for number, answer in disturbed.items() if number in undisturbed}
        return replace(
            found,
            strikes=findings.count([kind.value for shot in shots for kind in shot.kinds]),
            missed=[kind.value for shot in shots for kind in shot.missed]
            + [str(moment.step) for moment in fire.slow if moment.missed],
            slow_steps=findings.count([f"{one.step.work}, {one.step.how}" for one in fire.slow]),
            hung=sum(Strike.STOP in shot.kinds for shot in shots)
            + sum(moment.step.hangs and not moment.missed for moment in fire.slow),
            held=await _held(server, http),
            waits=longest_waits(innocent, fire.away),
            usual_wait_seconds=usual(
                wait for answers in (undisturbed, control) for wait in longest_waits(answers).values()
            ),
            server=counts,
            seconds=seconds,
            gaps=volleys.gaps(shots, streams) if plan.engines > 1 else [],
            early_gap_seconds=volleys.early_gap(shots, streams),
            usual_gap_seconds=max(map(volleys.longest, pauses), default=0.0),
        )


_COUNTERS = {
    "deaths": "penstock_engine_deaths_total",
    "requests that resumed on another engine": "penstock_resumed_requests_total",
    "requests failed as poison": "penstock_poisonous_requests_total",
    "late tokens dropped": "penstock_late_tokens_total",
    "requests whose client left": 'penstock_requests_total{outcome="cancelled"}',
}


def _cause(sample: str) -> str:
    return sample.partition('cause="')[2].partition('"')[0]


def _pool(plan: Plan) -> tuple[str, ...]:
    return () if plan.engines == 1 else ("--engines", str(plan.engines), *_PATIENT)


async def _knows_schemas(http: httpx.AsyncClient, url: str) -> bool:
    body = {"messages": [{"role": "user", "content": "x"}], "max_tokens": 40, "stream": False}
    answer = await ask(http, url, Question(0, {**body, "response_format": JSON_FORMAT}, greedy=True))
    return answer.status == 200


@dataclass(slots=True)
class _Fire:
    """What was done while the questions were asked."""

    shots: list[Volley] = field(default_factory=list)
    slow: list[SlowMoment] = field(default_factory=list)
    not_ready: list[Span] = field(default_factory=list)

    @property
    def away(self) -> list[Span]:
        """Return when the engine could not answer."""
        struck = [(shot.struck_at, shot.back_at) for shot in self.shots]
        return [*self.not_ready, *struck, *(moment.span for moment in self.slow)]


async def _under_fire(
    plan: Plan,
    server: Victim,
    http: httpx.AsyncClient,
    crowd: Crowd,
    visitors: Sequence[Mapping[Guest, Question]],
    note: Callable[[str], None],
) -> _Fire:
    """Ask all questions while engines die, with the deaths spread evenly over the questions."""
    chance = random.Random(plan.seed)
    to_come = in_order(plan, chance)
    done = _Fire()
    share = len(crowd.asked) / max(1, plan.moments)

    async def strikes() -> None:
        for number, kinds_ in enumerate(to_come):
            ahead = min(_AHEAD * plan.engines, share / 2)
            # The rest of the share is for the strike, should these be answered by then.
            crowd.due = max(crowd.due, int(number * share + ahead))
            await trio.sleep(chance.uniform(0.0, _BUSY_SECONDS))
            if isinstance(kinds_, SlowStep):
                visitors_ = visitors[len(done.slow)]
                moment = await strike_slowly(kinds_, visitors_, server, http, crowd, nursery)
                done.slow.append(moment)
                words, (began, back) = str(kinds_), moment.span
            else:
                shot = await _strike(plan, server, http, crowd, kinds_, chance)
                done.shots.append(shot)
                words, began, back = ", ".join(kinds_), shot.struck_at, shot.back_at
            note(f"{number + 1} of {plan.moments}: {words}; all ready after {back - began:.1f} s")
        crowd.due = len(crowd.asked)

    crowd.due = 0
    async with trio.open_nursery() as watch:
        watch.start_soon(_watch, server, http, done.not_ready)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(strikes)
            await crowd.ask_all()
        watch.cancel_scope.cancel()
    return done


async def _watch(server: Victim, http: httpx.AsyncClient, not_ready: list[Span]) -> None:
    """Note when the server is not ready, also by deaths that are no strike's, or the machine stands still."""
    began: float | None = None
    while True:
        looked = trio.current_time()
        ready = (await http.get(f"{server.url}/ready")).status_code == 200
        asleep = trio.current_time()
        await trio.sleep(_LOOK_SECONDS)
        if not ready or trio.current_time() - asleep > _LATE_SECONDS:
            began = looked if began is None else began
        elif began is not None:
            not_ready.append((began, looked))
            began = None


async def _held(server: Victim, http: httpx.AsyncClient) -> dict[str, float]:
    """Return what is still held for requests, of which none is left."""
    until = trio.current_time() + _HELD_SECONDS
    while (held := await server.holdings(http)) and trio.current_time() < until:  # noqa: ASYNC110 (another process)
        await trio.sleep(_LOOK_SECONDS)
    return held


def in_order(plan: Plan, chance: random.Random) -> list[tuple[Strike, ...] | SlowStep]:
    """Return the strikes in their order. A device's error may be a timeout, after which prompts are computed
    in smaller chunks: all of those come last, as no step of a large one would come behind them."""
    possible = kinds()
    if plan.engines > 1:
        return list(volleys.plan(plan.deaths, plan.engines, possible, plan.seed))
    to_come: list[tuple[Strike, ...] | SlowStep] = [
        *((possible[number % len(possible)],) for number in range(plan.deaths)),
        *slow_steps(plan.slow_steps, plan.seed),
    ]
    chance.shuffle(to_come)
    to_come.sort(key=lambda one: not isinstance(one, SlowStep) and Strike.DEVICE in one)
    return to_come


async def _strike(
    plan: Plan,
    server: Victim,
    http: httpx.AsyncClient,
    crowd: Crowd,
    kinds_: tuple[Strike, ...],
    chance: random.Random,
) -> Volley:
    """Strike, and return when the struck engines have died and all are ready again."""
    while not await _all_ready(plan, server, http):  # noqa: ASYNC110 (another process)
        await trio.sleep(_POLL_SECONDS)
    deaths = await _deaths(server, http)
    # The death of an engine that has begun no answer shows nothing.
    clients = min(2 * plan.engines, plan.clients)
    while crowd.in_flight < clients or not crowd.under_way:
        if crowd.in_flight < clients:
            if crowd.due >= len(crowd.asked):
                break
            crowd.due += 1
        await trio.sleep(_POLL_SECONDS)
    struck = dict(zip(chance.sample(server.engine_pids(), len(kinds_)), kinds_, strict=True))
    struck_at = trio.current_time()
    for pid, kind in struck.items():
        _try(pid, kind)
    insist_at = struck_at + _DEATH_SECONDS
    missed: list[Strike] = []
    while (alive := struck.keys() & set(server.engine_pids())) or not await _all_ready(plan, server, http):
        # Some kinds take effect in a step, and so need a client that requests one, of each engine. Of several
        # engines the others would answer all that is to be asked while the struck ones load.
        if alive or plan.engines == 1:
            crowd.due += crowd.in_flight < plan.engines
        if alive and trio.current_time() > insist_at:
            missed = missed or [struck[pid] for pid in alive]
            for pid in alive:
                _try(pid, Strike.KILL)
        await trio.sleep(_POLL_SECONDS)
    now = trio.current_time()
    return Volley(kinds_, struck_at, now, await _deaths(server, http) - deaths, tuple(missed))


def _try(pid: int, kind: Strike) -> None:
    # The engine may have died of something else at this moment.
    with suppress(ProcessLookupError):
        strike(pid, kind)


async def _all_ready(plan: Plan, server: Victim, http: httpx.AsyncClient) -> bool:
    if plan.engines > 1:
        there = len(server.engine_pids()) == plan.engines
        return there and await server.ready_engines(http) == plan.engines
    return await server.ready(http)


async def _deaths(server: Victim, http: httpx.AsyncClient) -> float:
    return (await server.metrics(http))["penstock_engine_deaths_total"]
