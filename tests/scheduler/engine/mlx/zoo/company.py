"""Is a model right in the engine? Random company: requests join, leave and follow one another, rows are
preempted, drafts verified, engines killed, and each request is held to mlx-lm alone, whatever its parameters.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from itertools import chain
from pathlib import Path

import msgspec
import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st
from mlx_lm.tuner.utils import load_adapters

from scheduler.engine.device import Traits
from scheduler.engine.mlx.batching import Batching
from scheduler.engine.mlx.device import METAL, forced
from scheduler.engine.mlx.load_check import ModelUnusable
from scheduler.engine.mlx.packed import PACKINGS
from scheduler.engine.mlx.upstream.mend import mend
from scheduler.engine.plan import SCAFFOLD_TOKENS
from scheduler.shared.messages import AdapterSource, KvCacheDtype, Sampling, Submit, ThinkingBudget
from tests.contracts.journal import GREEDY, request
from tests.examples import is_long_run
from tests.scheduler.engine.guesses import Guesses
from tests.scheduler.engine.mlx.adapters.adapted import write_adapter
from tests.scheduler.engine.mlx.families import fused
from tests.scheduler.engine.mlx.reuse import checked
from tests.scheduler.engine.mlx.zoo.alone import ROUNDING, Alone, Answer, difference, rounding
from tests.scheduler.engine.mlx.zoo.census import SMALL, build, build_exact
from tests.scheduler.engine.mlx.zoo.engine import CHUNK, Engine, words
from tests.scheduler.engine.mlx.zoo.rounding import Rule
from tests.scheduler.engine.mlx.zoo.tiny import WINDOW, wide_heads

_MOST_TOKENS = 9
_STEM = words(70, 900)
"""Longer than the windows and attention chunks of the zoo."""
_PREFIXES: tuple[list[int], ...] = ([], _STEM, _STEM[:45] + words(40, 901), _STEM + words(26, 902))
_RESTS = tuple(words(64, seed) for seed in range(2))
_EDGES = sorted(
    {edge + by for edge in (SCAFFOLD_TOKENS, CHUNK, WINDOW, 2 * CHUNK, CHUNK + WINDOW) for by in (-1, 0, 1)}
)
"""Lengths at which a follower begins to wait, a chunk ends, a window begins to slide."""
_SEEDED = msgspec.structs.replace(GREEDY, temperature=0.8, seed=5)
_PLAIN = st.sampled_from([GREEDY, _SEEDED])
_MIXED = st.builds(
    Sampling,
    temperature=st.sampled_from([0.0, 0.0, 0.4, 1.0, 1.3]),
    top_p=st.sampled_from([1.0, 0.95, 0.6]),
    top_k=st.sampled_from([0, 0, 5, 40]),
    min_p=st.sampled_from([0.0, 0.0, 0.05]),
    seed=st.integers(0, 1 << 62),
    repetition_penalty=st.sampled_from([1.0, 1.0, 1.2]),
    presence_penalty=st.sampled_from([0.0, 0.0, 0.7]),
    frequency_penalty=st.sampled_from([0.0, 0.0, 0.4]),
    logit_bias=st.sampled_from([(), (), ((5, 4.0), (9, -100.0))]),
)
_THINKING = st.builds(
    ThinkingBudget,
    tokens=st.integers(0, _MOST_TOKENS - 2),
    start=st.just((291, 293)),
    end=st.just((295, 296)),
    opens=st.booleans(),
    anywhere=st.just(True),
    held=st.just(1),
)


@dataclass(frozen=True, slots=True)
class Visit:
    """A request, and when it comes and leaves."""

    after_turns: int
    """Since the visit before it."""
    prefix: int
    rest_tokens: int
    rest_seed: int
    """With few of them prompts come back, and one is the beginning of another."""
    answer_tokens: int
    sampling: Sampling
    at_boundary: bool
    """Whether the end of the prefix is known to be one."""
    stays_turns: int | None
    """Until it is cancelled."""
    longer: int = 0
    """Tokens of its prompt behind `rest_tokens`."""
    echoes: bool = False
    """Whether it asks for the log-probabilities of its prompt."""
    stops: bool = False
    """Whether the first token of its first choice is a stop token."""
    choices: int = 1
    """Choices have one prompt, and seeds of their own, where there are seeds."""
    min_tokens: int = 0
    thinking: ThinkingBudget | None = None
    adapter: int = 0
    """0: none."""

    def submits(
        self, first_id: int, adapters: Sequence[str], first_token: Callable[[Submit], int]
    ) -> Iterator[Submit]:
        prefix = _PREFIXES[self.prefix]
        prompt = prefix + _RESTS[self.rest_seed][: self.rest_tokens + self.longer]
        boundaries = (len(prefix),) if prefix and self.at_boundary else ()
        stop: tuple[int, ...] = ()
        for number in range(self.choices):
            sampling = self.sampling
            if sampling.temperature:
                sampling = msgspec.structs.replace(sampling, seed=sampling.seed + number)
            submit = request(first_id + number, prompt, self.answer_tokens, sampling=sampling)
            adapter = adapters[self.adapter % len(adapters)]
            submit = msgspec.structs.replace(submit, thinking=self.thinking, adapter=adapter)
            if self.stops and not number:
                stop = (first_token(submit),)
            yield msgspec.structs.replace(
                submit,
                top_logprobs=0,
                boundaries=boundaries,
                stop_token_ids=stop,
                min_tokens=self.min_tokens,
                prompt_logprobs=0 if self.echoes else None,
            )


@dataclass(frozen=True, slots=True)
class Course:
    """What the engine goes through meanwhile."""

    seed: int
    """It makes the prefill budgets, and drafts."""
    preempted: frozenset[int] = frozenset()
    """Turns."""
    dies_at: int | None = None
    """The turn before which another engine takes over."""
    has_drafts: bool = False
    kv_tokens: int = 0
    """How many fit into the KV budget, so that others are evicted; 0: any number."""
    traits: Traits | None = None
    """What a device has that is not this one."""


_MOST_CHOICES = 2


def _visits(samplings: st.SearchStrategy[Sampling], is_plain: bool) -> st.SearchStrategy[list[Visit]]:
    """`is_plain`: without what makes tokens others than the model's own choice."""
    return st.lists(
        st.builds(
            Visit,
            after_turns=st.integers(0, 4),
            prefix=st.sampled_from([1, 2, 3, 0]),
            # Shorter and longer than a chunk, a window, a convolution.
            rest_tokens=st.one_of(st.integers(1, 4), st.integers(5, 60), st.sampled_from(_EDGES)),
            rest_seed=st.integers(0, 1),
            answer_tokens=st.one_of(st.integers(3, _MOST_TOKENS), st.integers(1, 2)),
            sampling=samplings,
            at_boundary=st.booleans(),
            stays_turns=st.one_of(st.none(), st.none(), st.integers(0, 12)),
            longer=st.integers(0, 3),
            echoes=st.sampled_from([False, False, False, True]),
            stops=st.just(False) if is_plain else st.sampled_from([False, False, False, True]),
            choices=st.sampled_from([1, 1, 1, _MOST_CHOICES]),
            min_tokens=st.just(0) if is_plain else st.sampled_from([0, 0, 3]),
            thinking=st.none() if is_plain else st.one_of(st.none(), st.none(), _THINKING),
            adapter=st.integers(0, 2),
        ),
        min_size=5,
        max_size=8,
    )


_RELATED = st.tuples(st.sampled_from([0, 1]), st.one_of(st.sampled_from(_EDGES), st.integers(1, 60))).flatmap(
    lambda stem: st.lists(
        st.builds(
            Visit,
            after_turns=st.sampled_from([0, 0, 1, 2]),
            prefix=st.just(stem[0]),
            rest_tokens=st.just(stem[1]),
            rest_seed=st.just(0),
            answer_tokens=st.integers(1, 2),
            sampling=_PLAIN,
            at_boundary=st.booleans(),
            stays_turns=st.one_of(st.none(), st.none(), st.none(), st.integers(0, 4)),
            longer=st.integers(0, 3),
            echoes=st.sampled_from([False, False, True]),
            stops=st.booleans(),
            choices=st.sampled_from([1, 1, 1, _MOST_CHOICES]),
        ),
        min_size=2,
        max_size=4,
    )
)
"""What an evaluation asks: a text, and the same text with its end, for a token or two of each."""


def _without_stops(visits: list[Visit]) -> list[Visit]:
    return [replace(visit, stops=False) for visit in visits]


_ALL, _PLAIN_ONES = _visits(_MIXED, is_plain=False), _visits(_PLAIN, is_plain=True)
_CALM = st.builds(Course, seed=st.integers(0, 1 << 16))
_ROUGH = st.builds(
    Course,
    seed=st.integers(0, 1 << 16),
    preempted=st.frozensets(st.integers(1, 14), max_size=5),
    dies_at=st.one_of(st.none(), st.integers(1, 16)),
    has_drafts=st.booleans(),
    kv_tokens=st.sampled_from([0, 0, 400]),
    traits=st.sampled_from([None, METAL]),
)


@dataclass(frozen=True, slots=True)
class Verdict:
    """What each scene showed: "right", or where it went wrong. `largest`: the largest difference of a
    logarithm of a token's probability."""

    scenes: dict[str, str]
    largest: float = 0.0
    fallbacks: tuple[str, ...] = ()
    """What the check at load found to be needed."""

    @property
    def outcome(self) -> str:
        """The worst of them, in the words of the table."""
        found = set(self.scenes.values())
        for kind in ("refused", "raises", "wrong tokens", "wrong logits"):
            if any(scene.startswith(kind) for scene in found):
                return kind
        return "right"


class Kind:
    """One model, mended and fused, its oracle, and what the engines over it have shown so far."""

    def __init__(
        self,
        name: str,
        kv_cache_dtype: KvCacheDtype = "auto",
        adapters: Path | None = None,
        small: bool = False,
    ) -> None:
        """`adapters`: a folder, in which two are written that some requests have. `small`: with
        two layers. Raises ModelUnusable."""
        self._kv_cache_dtype, packing = kv_cache_dtype, PACKINGS[kv_cache_dtype]
        changes = SMALL if small else {}
        with nullcontext() if packing is None else wide_heads():
            model, self._type = build(name, **changes)
            exact = build_exact(name, **changes) if "@" in name else None
        self._model = fused(mend(copy.deepcopy(model)))
        self._alone = {"": Alone(model)}
        self._sources: list[AdapterSource] = []
        for seed, rank in ((1, 4), (2, 7)):
            if adapters is None:
                break
            source = write_adapter(build(name, **changes)[0], adapters / f"{seed}", seed=seed, rank=rank)
            self._sources.append(source)
            self._alone[source.key] = Alone(load_adapters(build(name, **changes)[0], source.folder))
        self._rule: Rule | None = None
        if packing is not None:
            # Of the mended one, whose caches can be cut where mlx-lm's cannot.
            self._rule = Rule(self._model, self._model if exact is None else exact, packing)
        elif exact is not None:
            self._rule = Rule(model, exact)
        self.batching: Batching = checked(self._model, self._type, kv_cache_dtype)
        self.verifies = False
        self.most_rows = self.cached_tokens = self.preemptions = self.accepted_drafts = self.deaths = 0
        self.largest = 0.0

    def meet(self, examples: int, pairs: int) -> None:
        """Hold random company to the oracle: this many schedules, and as many of prompts of which one is the
        beginning of another. The first that fails is not shrunk, which takes minutes."""
        # Named, because `make zoo` has no conftest: a verdict must not hang on the day.
        quiet = settings(derandomize=not is_long_run(), deadline=None, database=None, phases=[Phase.generate])
        if examples:
            visits = _ALL if self._rule is None else _PLAIN_ONES
            settings(quiet, max_examples=examples)(given(visits, _ROUGH)(self.check))()
        if pairs:
            # Where rounding decides, a stop token of the model alone is none in company.
            related = _RELATED if self._rule is None else _RELATED.map(_without_stops)
            settings(quiet, max_examples=pairs)(given(related, _CALM)(self.check))()

    def verdict(self, examples: int, pairs: int) -> Verdict:
        scenes = {"cuts": "right", "company": "right"}
        if self._rule is None:
            # mlx-lm itself, reading one prompt in pieces and as a whole.
            alone, submit = self._alone[""], request(0, words(130, 7), _MOST_TOKENS)
            scenes["cuts"] = difference(alone.answer(submit, CHUNK), alone.answer(submit)) or "right"
        try:
            self.meet(examples, pairs)
        except AssertionError as wrong:
            scenes["company"] = str(wrong).partition("\n")[0]
        except Exception as error:  # A model raises whatever it raises.
            scenes["company"] = f"raises {type(error).__name__}: {str(error)[:90]}".replace("\n", " ")
        return Verdict(scenes, self.largest, self.batching.fallbacks)

    def check(self, visits: list[Visit], course: Course) -> None:
        with nullcontext() if course.traits is None else forced(course.traits):
            self._check(visits, course)

    def _check(self, visits: list[Visit], course: Course) -> None:
        arrivals: dict[int, list[Submit]] = {}
        leaves: dict[int, list[int]] = {}
        turn = 0
        for number, visit in enumerate(visits):
            turn += visit.after_turns
            submits = list(visit.submits(_MOST_CHOICES * number, list(self._alone), self._first_token))
            arrivals.setdefault(turn, []).extend(submits)
            if visit.stays_turns is not None:
                leaving = leaves.setdefault(turn + visit.stays_turns, [])
                leaving.extend(submit.request_id for submit in submits)
        asked = list(chain.from_iterable(arrivals.values()))
        guesses = None
        if course.has_drafts:
            guesses = Guesses({one.request_id: self._whole(one).tokens for one in asked}, course.seed)
        engine = self._engine(course, guesses)
        engine.run(arrivals, leaves, course.preempted, end=course.dies_at)
        if course.dies_at is not None:
            self.deaths += bool(engine.running)
            self.preemptions += engine.preemptions
            first, engine = engine, self._engine(course, guesses)
            engine.take_over(first)
            engine.run(arrivals, leaves, course.preempted, begin=course.dies_at)
        left = {number for those in leaves.values() for number in those}
        for submit in asked:
            found = engine.heard[submit.request_id]
            tokens = len(found.tokens) if submit.request_id in left else submit.max_tokens
            wrong = self._difference(found, submit, tokens)
            assert wrong is None, f"{wrong}; prompt of {len(submit.prompt)}"
            if submit.prompt_logprobs is not None:
                self._check_prompt(found, submit, submit.request_id in left)
        self.verifies = engine.verifies
        self.most_rows = max(self.most_rows, engine.most_rows)
        self.cached_tokens += engine.cached_tokens
        self.preemptions += engine.preemptions
        if guesses is not None:
            self.accepted_drafts += sum(accepted for _, accepted in guesses.counters.sources.values())

    def _engine(self, course: Course, guesses: Guesses | None) -> Engine:
        return Engine(
            copy.deepcopy(self._model) if self._sources else self._model,
            self._type,
            self.batching,
            course.seed,
            speculation=guesses,
            kv_cache_dtype=self._kv_cache_dtype,
            kv_tokens=course.kv_tokens,
            adapters=self._sources,
        )

    def _difference(self, found: Answer, submit: Submit, tokens: int) -> str | None:
        if self._rule is None:
            expected = self._expected(submit, tokens)
            self.largest = max(self.largest, rounding(found, expected))
            return difference(found, expected)
        if not tokens:
            return None if not found.tokens else "wrong tokens: too many"
        wrong = self._rule.difference(found, msgspec.structs.replace(submit, max_tokens=tokens))
        self.largest = self._rule.largest
        return wrong

    def _check_prompt(self, found: Answer, submit: Submit, left: bool) -> None:
        """Hold the log-probabilities of its prompt to mlx-lm's. Who left has a part of it."""
        prompt = submit.prompt
        assert len(found.prompt) == len(prompt) - 1 or (left and not found.tokens), submit.request_id
        if self._rule is None:
            expected = self._alone[submit.adapter].prompt_logprobs(prompt)[: len(found.prompt)]
            assert found.prompt == pytest.approx(expected, abs=ROUNDING), submit.request_id

    def _first_token(self, submit: Submit) -> int:
        return self._whole(submit).tokens[0]

    def _whole(self, submit: Submit) -> Answer:
        return self._alone[submit.adapter].answer(msgspec.structs.replace(submit, max_tokens=_MOST_TOKENS))

    def _expected(self, submit: Submit, tokens: int) -> Answer:
        whole = self._whole(submit)
        ends = (at for at, token in enumerate(whole.tokens, 1) if token in submit.stop_token_ids)
        tokens = min(tokens, next(ends, tokens))
        return Answer(whole.tokens[:tokens], whole.logprobs[:tokens], whole.leads[:tokens])


def judged(name: str, examples: int, pairs: int) -> Verdict:
    """Build a model, and say what is wrong with it."""
    try:
        kind = Kind(name)
    except ModelUnusable as unusable:
        return Verdict({"load": f"refused: {unusable}"})
    except Exception as error:
        return Verdict({"build": f"raises {type(error).__name__}: {error}"})
    return kind.verdict(examples, pairs)
