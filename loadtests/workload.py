"""Workload: the requests of every agent of a scenario, turn by turn.

It owns the conversations; it knows no target and no clock. Everything is drawn from (seed, population,
session number), and texts from the run's salt as well. So a session does not depend on the others, and two
runs of one seed differ only in their words. The driver calls it, waits and sends.
"""

from __future__ import annotations

import math
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache, partial
from typing import Any, Final

from loadtests.scenario import Population, Scenario

NO_ANSWER: Final = "[no answer]"
"""Takes the place of a missing answer in the history: chat templates require the roles to alternate."""
_STOPS: Final = ("\n\n", " the", "END", "</tool>")
_PIECE: Final = 64
Message = dict[str, str]


_TEXT: Final = """
def return function value error file line read write open path test class import server request token
cache build module config result name type list string number data time code user state event index count
size key map set get call loop while break continue true false none table column row field record query
search sort filter group join select insert update delete create remove change check start stop run wait
send reply message text word page title section part block step level tree node graph issue report log
trace debug print show display view model queue task work thread process lock memory disk network client
host port link address domain local remote public private shared global common main base small large long
short high low first last next previous before after old new closed full empty left right top bottom front
back inside window east child friend family letter make take give find keep hold move turn follow lead
tell look know want need help fall pass cover close begin end over under between through across along
around because however although where when until since during without within against about again always
never often sometimes together three four second third week month year simple clear strong slow deep round
square white clean safe free ready method object array buffer stream input output source target version
package library service system program command option default setting format parse encode decode load copy
match replace pattern rule limit range total rate order account device frame image color
"""
WORDS: Final = tuple(_TEXT.split())


class Prompts:
    """Generates the texts of one run."""

    def __init__(self, salt: str, tokens_per_word: float) -> None:
        assert tokens_per_word > 0
        self._salt = salt
        self._tokens_per_word = tokens_per_word
        # Every session of a population uses the shared layers, which may be long.
        self.layer = lru_cache(maxsize=256)(self.text)

    def text(self, tokens: float, *key: object) -> str:
        """Return about `tokens` tokens, at least one word. A shorter text of the same key is a prefix of a
        longer one. `layer` is the same, cached."""
        count = max(1, round(tokens / self._tokens_per_word))
        rng = random.Random("/".join(map(str, (self._salt, *key))))
        return " ".join(rng.choices(WORDS, k=count))


@dataclass(frozen=True, slots=True)
class Ask:
    """One request, independent of the target. `messages` are the whole conversation."""

    messages: tuple[Message, ...]
    max_tokens: int
    exact: bool
    """Whether the answer must have exactly `max_tokens` (ignore_eos)."""
    sampling: Mapping[str, Any]
    """Fields of the body: temperature, top_p, seed, stop, ..."""
    reusable_share: float = 0.0
    """The share of this prompt that an unbounded cache could have."""
    timeout_seconds: float | None = None
    """The deadline for the whole answer."""
    questions: int = 0
    """How many typed questions it asks about the conversation, in place of an answer."""


class Seen:
    """The prompts so far, and prompts with their answers, in pieces of 64 characters that are known by all
    that stands before them: what an unbounded prefix cache would have. A prompt counts as seen once it was
    sent, answered or not: requests of one burst can share work in flight."""

    def __init__(self) -> None:
        self._pieces: set[int] = set()

    def add(self, messages: Sequence[Message]) -> float:
        """Add this prompt, and return which share of it was known."""
        text = "".join(f"\0{one['role']}\0{one['content']}" for one in messages)
        known, before, is_known = 0, 0, True
        for at in range(0, len(text), _PIECE):
            before = hash((before, text[at : at + _PIECE]))
            is_known = is_known and before in self._pieces
            known += is_known and len(text[at : at + _PIECE])
            self._pieces.add(before)
        return known / len(text) if text else 0.0


class Session:
    """One agent's conversation, or a subagent's. Turns run in order, once each; the history keeps a place for
    an answer that never came. Each value has a random source of its own, so that changing the length of the
    answers, say, does not change the gaps."""

    def __init__(
        self,
        population: Population,
        key: str,
        seed: int,
        group: int,
        turns: int,
        prompts: Prompts,
        seen: Seen,
        children: tuple[Session, ...] = (),
    ) -> None:
        self.id = f"{population.name}-{key}"
        self.population = population.name
        self.tenant = population.tenant
        self.turns = turns
        self._settings = population
        self._key = key
        self._seed = seed
        self._group = group
        self._prompts = prompts
        self._seen = seen
        self._children = children
        self._history: list[Message] = []
        self._sampling = (
            {"temperature": 0.0}
            if population.sampling == "greedy"
            else mixed(self._rng("sampling"), stops=not population.output.exact)
        )

    def gap_before(self, turn: int) -> float:
        """Return the seconds to wait before `turn`; 0 before the first."""
        turns = self._settings.turns
        if turn == 1 or not turns.gap_median_seconds:
            return 0.0
        drawn = self._rng(f"gap/{turn}").lognormvariate(math.log(turns.gap_median_seconds), turns.gap_sigma)
        return min(drawn, turns.gap_most_seconds)

    def ask(self, turn: int) -> Ask:
        """Return the request of this turn, with the answers so far. From here on its prompt counts as one
        that the target has seen."""
        if self._history and self._history[-1]["role"] != "assistant":
            self._history.append({"role": "assistant", "content": NO_ANSWER})
        self._history += self._opening() if turn == 1 else self._growth(turn)
        output = self._settings.output
        return Ask(
            messages=tuple(self._history),
            max_tokens=self._rng(f"output/{turn}").randint(output.least, output.most),
            exact=output.exact,
            sampling=self._sampling,
            reusable_share=self._seen.add(self._history),
            timeout_seconds=self._settings.timeout_seconds,
            questions=self._settings.questions,
        )

    def answered(self, text: str) -> None:
        """Add the server's answer to the history."""
        self._history.append({"role": "assistant", "content": text})
        self._seen.add(self._history)

    def subagents(self, turn: int) -> tuple[Session, ...]:
        """Return the subagents to run, and to wait for, after this turn."""
        plan = self._settings.subagents
        return self._children if plan is not None and turn == plan.at_turn else ()

    def _opening(self) -> tuple[Message, ...]:
        """Return the three layers, the most shared one first: caches keep prefixes."""
        prompt, text = self._settings.prompt, self._prompts.layer
        layers = ((prompt.shared_tokens, "shared"), (prompt.group_tokens, f"group {self._group}"))
        shared = [text(tokens, key) for tokens, key in layers if tokens]
        own = self._prompts.text(prompt.private_tokens, "private", self.population, self._key)
        user = {"role": "user", "content": own}
        return ({"role": "system", "content": "\n\n".join(shared)}, user) if shared else (user,)

    def _growth(self, turn: int) -> tuple[Message, ...]:
        tokens, name = self._settings.turns.growth_tokens, self.population
        return ({"role": "user", "content": self._prompts.text(tokens, "turn", name, self._key, turn)},)

    def _rng(self, purpose: str) -> random.Random:
        return random.Random(f"{self._seed}/{self.population}/{self._key}/{purpose}")


class Workload:
    """All sessions of one run."""

    def __init__(self, scenario: Scenario, salt: str, tokens_per_word: float) -> None:
        self._scenario = scenario
        self._prompts = Prompts(f"{salt}/{scenario.seed}", tokens_per_word / scenario.token_scale)
        self._seen = Seen()

    def session(self, population: Population, number: int) -> Session:
        """Return the population's session of this number, from 0; the same for the same number."""
        rng = random.Random(f"{self._scenario.seed}/{population.name}/{number}/session")
        groups = range(population.prompt.groups)
        # A few repositories have most of the agents: group g has weight 1 / (g + 1).
        group = rng.choices(groups, weights=[1 / (group + 1) for group in groups])[0]
        turns = rng.randint(population.turns.least, population.turns.most)
        make = partial(Session, population, seed=self._scenario.seed, group=group)
        make = partial(make, prompts=self._prompts, seen=self._seen)
        children: tuple[Session, ...] = ()
        if (plan := population.subagents) is not None:
            keys = [f"{number}/{child}" for child in range(1, plan.count + 1)]
            children = tuple(make(key=key, turns=plan.turns) for key in keys)
        return make(key=str(number), turns=turns, children=children)


def mixed(rng: random.Random, stops: bool) -> dict[str, Any]:
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
        **({"stop": rng.sample(_STOPS, k=rng.randint(1, len(_STOPS)))} if stops else {}),
    }
    return fields | {name: value for name, value in offers.items() if rng.random() < 0.5}
