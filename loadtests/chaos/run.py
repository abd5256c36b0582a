"""The chaos run: ask the questions twice undisturbed, then again while engines die."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import count

import httpx
import trio

from loadtests.chaos import findings, volleys
from loadtests.chaos.answers import Answer, ask
from loadtests.chaos.findings import Findings
from loadtests.chaos.questions import JSON_FORMAT, Question, poison, questions
from loadtests.chaos.strikes import Strike, kinds, strike
from loadtests.chaos.victim import Victim, victim
from loadtests.chaos.volleys import Volley

SERVER = (
    *("--stall-seconds", "3"),
    *("--max-engine-deaths", "100000"),
    *("--max-request-deaths", "6"),
    *("--max-slots", "8"),
)
"""The server must find a hung engine within seconds and allow more engine deaths than by default. An innocent
request may be alone in the engine, without a token yet, at two deaths in a row; the default would fail it."""
_CLIENTS = 12
_CLIENTS_AN_ENGINE = 6
_PATIENT = ("--stall-seconds", "6")
"""Options for several engines on few cores: where the machine pauses all of them, none must be declared
hung."""
_AHEAD = 4
"""How many questions may be sent ahead of the deaths' progress."""
_BUSY_SECONDS = 2.5
"""The longest wait from a death's share of the questions to the death."""
_POLL_SECONDS = 0.02
_DEATH_SECONDS = 20.0
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
        victim([*SERVER, *_pool(plan), *plan.arguments]) as server,
        httpx.AsyncClient(timeout=timeout, limits=limits, trust_env=False) as http,
    ):
        while not await _all_ready(plan, server, http):  # noqa: ASYNC110 (another process)
            # Engines that load take the processors from those that answer.
            await trio.sleep(_POLL_SECONDS)
        asked = questions(plan.requests, plan.seed, await _knows_schemas(http, server.url))
        began = trio.current_time()
        undisturbed = await _Crowd(http, server.url, asked, plan.clients).ask_all()
        note(f"undisturbed: {trio.current_time() - began:.1f} s")
        control = await _Crowd(http, server.url, asked, plan.clients).ask_all()
        before = await server.metrics(http)
        if plan.poison:
            asked.insert(len(asked) // 3, poison(len(asked)))
        began = trio.current_time()
        crowd = _Crowd(http, server.url, asked, plan.clients)
        shots = await _under_fire(plan, server, http, crowd, note)
        seconds = trio.current_time() - began
        after = await server.metrics(http)
        found = findings.compare(asked, undisturbed, control, crowd.answers)
        counts = {name: after.get(key, 0.0) - before.get(key, 0.0) for name, key in _COUNTERS.items()}
        counts |= {
            f"deaths reported as {_cause(sample)}": value
            for sample, value in sorted(after.items())
            if sample.startswith("penstock_engine_restarts_total") and value
        }
        least = await server.metrics(http, combine=min)
        counts["share of the KV budget at the end"] = least["penstock_kv_cache_share"]
        even = volleys.even_streams(undisturbed, control)
        usual = [answers[number].pauses for answers in (undisturbed, control) for number in even]
        disturbed = [answer for number, answer in crowd.answers.items() if number in even]
        return replace(
            found,
            strikes=findings.count([kind.value for shot in shots for kind in shot.kinds]),
            missed=[kind.value for shot in shots for kind in shot.missed],
            server=counts,
            seconds=seconds,
            gaps=volleys.gaps(shots, disturbed) if plan.engines > 1 else [],
            early_gap_seconds=volleys.early_gap(shots, disturbed),
            usual_gap_seconds=max(map(volleys.longest, usual), default=0.0),
        )


_COUNTERS = {
    "deaths": "penstock_engine_deaths_total",
    "requests that resumed on another engine": "penstock_resumed_requests_total",
    "requests failed as poison": "penstock_poisonous_requests_total",
    "late tokens dropped": "penstock_late_tokens_total",
}


def _cause(sample: str) -> str:
    return sample.partition('cause="')[2].partition('"')[0]


def _pool(plan: Plan) -> tuple[str, ...]:
    return () if plan.engines == 1 else ("--engines", str(plan.engines), *_PATIENT)


async def _knows_schemas(http: httpx.AsyncClient, url: str) -> bool:
    body = {"messages": [{"role": "user", "content": "x"}], "max_tokens": 40, "stream": False}
    answer = await ask(http, url, Question(0, {**body, "response_format": JSON_FORMAT}, greedy=True))
    return answer.status == 200


class _Crowd:
    """Clients that send the questions in order, each when it is due."""

    def __init__(self, http: httpx.AsyncClient, url: str, asked: Sequence[Question], clients: int) -> None:
        self._http = http
        self._url = url
        self._asked = asked
        self._clients = clients
        self._next = count()
        self.due = len(asked)
        """How many questions may have been sent by now."""
        self._in_flight: dict[int, Answer] = {}
        self.answers: dict[int, Answer] = {}

    @property
    def in_flight(self) -> int:
        return len(self._in_flight)

    @property
    def under_way(self) -> bool:
        """Return whether an answer has begun to arrive and has not ended."""
        return any(answer.under_way for answer in self._in_flight.values())

    async def ask_all(self) -> dict[int, Answer]:
        async with trio.open_nursery() as nursery:
            for _ in range(self._clients):
                nursery.start_soon(self._client)
        return self.answers

    async def _client(self) -> None:
        while (place := next(self._next)) < len(self._asked):
            while place >= self.due:  # noqa: ASYNC110 (a strike is no event of ours)
                await trio.sleep(_POLL_SECONDS)
            question = self._asked[place]
            self.answers[question.number] = self._in_flight[place] = Answer()
            await ask(self._http, self._url, question, self._in_flight[place])
            del self._in_flight[place]


async def _under_fire(
    plan: Plan, server: Victim, http: httpx.AsyncClient, crowd: _Crowd, note: Callable[[str], None]
) -> list[Volley]:
    """Ask all questions while engines die, with the deaths spread evenly over the questions."""
    chance = random.Random(plan.seed)
    to_come = _strikes(plan, chance)
    done: list[Volley] = []
    share = len(crowd._asked) / max(1, plan.deaths)

    async def strikes() -> None:
        for number, kinds_ in enumerate(to_come):
            ahead = min(_AHEAD * plan.engines, share / 2)
            # The rest of the share is for the strike, should these be answered by then.
            crowd.due = max(crowd.due, int(number * share + ahead))
            await trio.sleep(chance.uniform(0.0, _BUSY_SECONDS))
            shot = await _strike(plan, server, http, crowd, kinds_, chance)
            done.append(shot)
            note(
                f"{number + 1} of {plan.deaths}: {', '.join(kind.value for kind in kinds_)};"
                f" all ready after {shot.back_at - shot.struck_at:.1f} s"
            )
        crowd.due = len(crowd._asked)

    crowd.due = 0
    async with trio.open_nursery() as nursery:
        nursery.start_soon(strikes)
        await crowd.ask_all()
    return done


def _strikes(plan: Plan, chance: random.Random) -> list[tuple[Strike, ...]]:
    possible = kinds()
    if plan.engines > 1:
        return volleys.plan(plan.deaths, plan.engines, possible, plan.seed)
    to_come: list[tuple[Strike, ...]] = [(possible[number % len(possible)],) for number in range(plan.deaths)]
    chance.shuffle(to_come)
    return to_come


async def _strike(
    plan: Plan,
    server: Victim,
    http: httpx.AsyncClient,
    crowd: _Crowd,
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
            if crowd.due >= len(crowd._asked):
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
    return server.engine_pid() is not None and (await http.get(f"{server.url}/ready")).status_code == 200


async def _deaths(server: Victim, http: httpx.AsyncClient) -> float:
    return (await server.metrics(http))["penstock_engine_deaths_total"]
