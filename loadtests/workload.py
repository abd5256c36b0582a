"""Workload: the requests of every agent of a scenario, turn by turn.

It owns the conversations; it knows no target and no clock. Everything is drawn from (seed, population,
session number), and texts from the run's salt as well. So a session does not depend on the others, and two
runs of one seed differ only in their words. The driver calls it, waits and sends.
"""

from __future__ import annotations

import math
import random
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Final, Protocol

from loadtests import traces
from loadtests.facts import TOKENS, Fact, among
from loadtests.prompts import Prompts
from loadtests.reuse import ReuseIndex
from loadtests.scenario import Population, Scenario
from loadtests.traces import RecordedSession

NO_ANSWER: Final = "[no answer]"
"""Takes the place of a missing answer in the history: chat templates require the roles to alternate."""

_MARK_TOKENS: Final = 8
_TOKENS_PER_FACT: Final = 64
_MOST_FACTS: Final = 40
_STALE_SALT: Final = "the same in every run"
_STOPS: Final = ("\n\n", " the", "END", "</tool>")


@dataclass(frozen=True, slots=True)
class Ask:
    """One request, independent of the target."""

    messages: tuple[dict[str, str], ...]
    """The whole conversation; of a script's turn what follows the last answer, unless it is `whole`."""
    max_tokens: int
    exact: bool
    """Whether the answer must have exactly `max_tokens` (ignore_eos)."""
    sampling: Mapping[str, Any]
    """Fields of the body: temperature, top_p, seed, stop, ..."""
    reusable_share: float = 0.0
    """The reusable share of this prompt when it is sent; see reuse.py."""
    expected: str | None = None
    """What a right answer contains, if known."""
    whole: bool = True
    hang_up_after_deltas: int | None = None
    hang_up_after_seconds: float | None = None
    """The client disconnects if no delta has come after this time. None waits."""
    timeout_seconds: float | None = None
    """The deadline for the whole answer."""
    read_bytes_per_second: float | None = None


class Script(Protocol):
    """The turns of a session, counted from 1."""

    turns: int

    def gap_before(self, turn: int) -> float: ...
    def ask(self, turn: int) -> Ask: ...
    def subagents(self, turn: int) -> tuple[Session, ...]: ...


class Session:
    """One agent's conversation, a subagent's, or a session of a trace. Turns run in order, once each; the
    history keeps a place for an answer that never came."""

    def __init__(self, id: str, population: str, tenant: str, script: Script, reuse: ReuseIndex) -> None:
        self.id = id
        self.population = population
        self.tenant = tenant
        self.turns = script.turns
        self._script = script
        self._reuse = reuse
        self._history: list[dict[str, str]] = []
        self._asked = 0

    def gap_before(self, turn: int) -> float:
        """Return the seconds to wait before `turn`; 0 before the first."""
        return self._script.gap_before(turn) if turn > 1 else 0.0

    def ask(self, turn: int) -> Ask:
        """Return the request of this turn, with the answers so far. From here on its prompt counts as one
        that the target has seen."""
        assert turn == self._asked + 1, "turns are asked in order, once each"
        self._asked = turn
        asked = self._script.ask(turn)
        if asked.whole:
            self._history = []
        elif self._history and self._history[-1]["role"] != "assistant":
            self._history.append({"role": "assistant", "content": NO_ANSWER})
        self._history.extend(asked.messages)
        reusable_share = self._reuse.add(self._history)
        return replace(asked, messages=tuple(self._history), reusable_share=reusable_share, whole=True)

    def answered(self, turn: int, text: str) -> None:
        """Add the server's answer to the history."""
        assert turn == self._asked, "only the last turn can be answered"
        assert self._history[-1]["role"] != "assistant", "a turn has one answer"
        self._history.append({"role": "assistant", "content": text})
        self._reuse.add(self._history)

    def subagents(self, turn: int) -> tuple[Session, ...]:
        """Return the subagents to run, and to wait for, after this turn."""
        return self._script.subagents(turn)


class Workload:
    """All sessions of one run."""

    def __init__(self, scenario: Scenario, salt: str, tokens_per_word: float) -> None:
        self._scenario = scenario
        salt = salt if scenario.fresh else _STALE_SALT
        self._prompts = Prompts(f"{salt}/{scenario.seed}", tokens_per_word)
        self._reuse = ReuseIndex()

    def session(self, population: Population, number: int) -> Session:
        """Return the population's session of this number, from 0; the same for the same number."""
        return self._agent(population, str(number), None, None)

    def trace(self) -> tuple[tuple[float | None, Session], ...]:
        """Return the sessions of the scenario's trace with their starts, those without a start first; at most
        the run's bound on requests. Raise ScenarioError if the trace is invalid."""
        replay = self._scenario.replay
        assert replay is not None
        mark = self._prompts.text(_MARK_TOKENS, "mark") if self._scenario.fresh else ""
        recorded = traces.read(replay, self._prompts, mark)[: self._scenario.bounds.requests]
        return tuple(
            (one.start_seconds, Session(one.id, "replay", "default", _Recording(one), self._reuse))
            for one in recorded
        )

    def _agent(self, population: Population, key: str, group: int | None, turns: int | None) -> Session:
        """Return an agent that draws its group and its turns, or a subagent with those given."""
        seed = f"{self._scenario.seed}/{population.name}/{key}"
        children: tuple[Session, ...] = ()
        if group is None:
            group = _group(population, random.Random(f"{seed}/group"))
            if (plan := population.subagents) is not None:
                children = tuple(
                    self._agent(population, f"{key}/{child}", group, plan.turns)
                    for child in range(1, plan.count + 1)
                )
        if turns is None:
            turns = random.Random(f"{seed}/turns").randint(population.turns.least, population.turns.most)
        script = _Agent(population, key, seed, group, turns, self._prompts, children)
        return Session(f"{population.name}-{key}", population.name, population.tenant, script, self._reuse)


def _group(population: Population, rng: random.Random) -> int:
    """Draw a group. A few repositories have most of the agents: group g has weight 1 / (g + 1)."""
    groups = range(population.prompt.groups)
    return rng.choices(groups, weights=[1 / (group + 1) for group in groups])[0]


class _Agent:
    """The script of a population's settings. Each value has a random source of its own, so that changing the
    length of the answers, say, does not change the gaps."""

    def __init__(
        self,
        population: Population,
        key: str,
        seed: str,
        group: int,
        turns: int,
        prompts: Prompts,
        children: tuple[Session, ...],
    ) -> None:
        self.turns = turns
        self._population = population
        self._key = key
        self._seed = seed
        self._group = group
        self._prompts = prompts
        self._children = children
        self._sampling = (
            {"temperature": 0.0}
            if population.sampling == "greedy"
            else mixed(self._rng("sampling"), population.logprobs, stops=not population.output.exact)
        )

    def gap_before(self, turn: int) -> float:
        turns = self._population.turns
        if not turns.gap_median_seconds:
            return 0.0
        drawn = self._rng(f"gap/{turn}").lognormvariate(math.log(turns.gap_median_seconds), turns.gap_sigma)
        return min(drawn, turns.gap_most_seconds)

    def ask(self, turn: int) -> Ask:
        population = self._population
        output = population.output
        deltas, seconds = self._hang_up(turn)
        asked = self._rng(f"recall/{turn}").choice(self._known(turn)) if population.recall else None
        return Ask(
            messages=self._opening(asked) if turn == 1 else self._growth(turn, asked),
            max_tokens=self._rng(f"output/{turn}").randint(output.least, output.most),
            exact=output.exact and asked is None,
            sampling=self._sampling,
            expected=None if asked is None else asked.code,
            whole=False,
            hang_up_after_deltas=deltas,
            hang_up_after_seconds=seconds,
            timeout_seconds=population.timeout_seconds,
            read_bytes_per_second=population.read_bytes_per_second,
        )

    def subagents(self, turn: int) -> tuple[Session, ...]:
        plan = self._population.subagents
        return self._children if plan is not None and turn == plan.at_turn else ()

    def _opening(self, asked: Fact | None) -> tuple[dict[str, str], ...]:
        """Return the three layers, the most shared one first: caches keep prefixes."""
        layers = [self._written(layer, asked is not None) for layer in self._layers()]
        *shared, private = layers
        user = {"role": "user", "content": _asking(private, asked)}
        return ({"role": "system", "content": "\n\n".join(shared)}, user) if shared else (user,)

    def _growth(self, turn: int, asked: Fact | None) -> tuple[dict[str, str], ...]:
        text = self._written(self._grown(turn), asked is not None)
        return ({"role": "user", "content": _asking(text, asked)},)

    def _layers(self) -> list[_Layer]:
        """Return the layers of the opening; the session's own is the last."""
        prompt = self._population.prompt
        group = ("group", prompt.shared_name, self._group)
        layers = [
            _Layer("pump", prompt.shared_tokens, ("shared", prompt.shared_name), common=True),
            _Layer("drone", prompt.group_tokens, group, common=True),
            _Layer("agent", prompt.private_tokens, ("private", self._population.name, self._key)),
        ]
        return [layer for layer in layers if layer.tokens]

    def _grown(self, turn: int) -> _Layer:
        key = ("turn", self._population.name, self._key, turn)
        return _Layer("ticket", self._population.turns.growth_tokens, key, first=100 * turn)

    def _written(self, layer: _Layer, facts: bool) -> str:
        stated = self._facts(layer) if facts else ()
        write = self._prompts.layer if layer.common else self._prompts.text
        filler = layer.tokens - TOKENS * len(stated)
        return among(write(filler, *layer.key) if filler > 0 else "", stated)

    def _facts(self, layer: _Layer) -> tuple[Fact, ...]:
        count = max(1, min(_MOST_FACTS, round(layer.tokens / _TOKENS_PER_FACT)))
        return self._prompts.facts(layer.kind, layer.first, count, *layer.key)

    def _known(self, turn: int) -> list[Fact]:
        """Return the facts that this turn may ask for: all that were stated so far."""
        layers = [*self._layers(), *(self._grown(earlier) for earlier in range(2, turn + 1))]
        return [fact for layer in layers for fact in self._facts(layer)]

    def _hang_up(self, turn: int) -> tuple[int | None, float | None]:
        plan, rng = self._population.hang_up, self._rng(f"hang-up/{turn}")
        if plan is None or rng.random() >= plan.share:
            return None, None
        chosen = rng.randrange(len(plan.after_deltas) + len(plan.while_waiting_seconds))
        if chosen < len(plan.after_deltas):
            return plan.after_deltas[chosen], None
        return None, plan.while_waiting_seconds[chosen - len(plan.after_deltas)]

    def _rng(self, purpose: str) -> random.Random:
        return random.Random(f"{self._seed}/{purpose}")


@dataclass(frozen=True, slots=True)
class _Layer:
    """A part of a prompt, before its text is generated. `kind` is the subject of its facts, if any."""

    kind: str
    tokens: int
    key: tuple[object, ...]
    first: int = 1
    """The lowest number of its facts: no two layers of a session have a fact about the same thing."""
    common: bool = False
    """Whether many sessions use it."""


def _asking(text: str, fact: Fact | None) -> str:
    return text if fact is None else f"{text} {fact.question}"


def mixed(rng: random.Random, logprobs: bool, stops: bool) -> dict[str, Any]:
    """Draw one client's sampling: always a temperature, each other field with probability one half. Stop
    strings only if an answer may end early."""
    fields: dict[str, Any] = {"temperature": round(rng.uniform(0.0, 1.5), 2)}
    offers: dict[str, Any] = {
        "top_p": round(rng.uniform(0.5, 1.0), 2),
        "top_k": rng.choice([1, 20, 40, 100]),
        "min_p": round(rng.uniform(0.01, 0.2), 2),
        "seed": rng.randrange(2**31),
        "presence_penalty": round(rng.uniform(-0.5, 1.5), 2),
        "frequency_penalty": round(rng.uniform(-0.5, 1.0), 2),
        "repetition_penalty": round(rng.uniform(1.0, 1.3), 2),
        "stop": rng.sample(_STOPS, k=rng.randint(1, len(_STOPS))),
    }
    chosen = {name: value for name, value in offers.items() if rng.random() < 0.5}
    asks_logprobs, count = rng.random() < 0.5, rng.randint(1, 5)
    if not stops:
        chosen.pop("stop", None)
    if logprobs and asks_logprobs:
        chosen |= {"logprobs": True, "top_logprobs": count}
    return fields | chosen


class _Recording:
    """The script of a recorded session."""

    def __init__(self, recorded: RecordedSession) -> None:
        self.turns = len(recorded.turns)
        self._recorded = recorded

    def gap_before(self, turn: int) -> float:
        return self._recorded.turns[turn - 1].gap_seconds

    def ask(self, turn: int) -> Ask:
        recorded = self._recorded.turns[turn - 1]
        return Ask(
            messages=recorded.messages,
            max_tokens=recorded.max_tokens,
            exact=recorded.exact,
            sampling={"temperature": 0.0},
            whole=self._recorded.whole,
        )

    def subagents(self, turn: int) -> tuple[Session, ...]:
        return ()
