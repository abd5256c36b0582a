"""Random company: requests join, leave and follow one another, and each gets the tokens that
mlx-lm gives it alone, greedy or with a seed.

A few schedules of each kind of cache here; with `ZOO=whole`, as in `make zoo`, many.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from scheduler.engine.mlx.batching import Batching
from scheduler.engine.mlx.packed import PACKINGS
from scheduler.engine.plan import SCAFFOLD_TOKENS
from scheduler.shared.messages import KvCacheDtype, Sampling, Submit
from tests.contracts.journal import GREEDY, request
from tests.examples import examples, sampled
from tests.scheduler.engine.mlx.reuse import checked
from tests.scheduler.engine.mlx.zoo.alone import ROUNDING, Alone, Answer, difference
from tests.scheduler.engine.mlx.zoo.census import SMALL, build
from tests.scheduler.engine.mlx.zoo.check import CHUNK, Engine, words
from tests.scheduler.engine.mlx.zoo.kinds import KINDS
from tests.scheduler.engine.mlx.zoo.rounding import Rule
from tests.scheduler.engine.mlx.zoo.tiny import WINDOW, wide_heads

_WHOLE = os.environ.get("ZOO") == "whole"
_EXAMPLES = 200 if _WHOLE else 5
_PAIRS_EXAMPLES = 200 if _WHOLE else examples(6)
_SMALL = () if _WHOLE else ("qwen3", "gpt_oss", "qwen3_next")
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

    def submits(self, first_id: int, first_token: Callable[[Submit], int]) -> Iterator[Submit]:
        prefix = _PREFIXES[self.prefix]
        prompt = prefix + _RESTS[self.rest_seed][: self.rest_tokens + self.longer]
        boundaries = (len(prefix),) if prefix and self.at_boundary else ()
        stop: tuple[int, ...] = ()
        for number in range(self.choices):
            sampling = self.sampling
            if sampling.temperature:
                sampling = msgspec.structs.replace(sampling, seed=sampling.seed + number)
            submit = request(first_id + number, prompt, self.answer_tokens, sampling=sampling)
            if self.stops and not number:
                stop = (first_token(submit),)
            yield msgspec.structs.replace(
                submit,
                top_logprobs=0,
                boundaries=boundaries,
                stop_token_ids=stop,
                prompt_logprobs=0 if self.echoes else None,
            )


_MOST_CHOICES = 2
_VISITS = st.lists(
    st.builds(
        Visit,
        after_turns=st.integers(0, 4),
        prefix=st.sampled_from([1, 2, 3, 0]),
        # Shorter and longer than a chunk, a window, a convolution.
        rest_tokens=st.one_of(st.integers(1, 4), st.integers(5, 60), st.sampled_from(_EDGES)),
        rest_seed=st.integers(0, 1),
        answer_tokens=st.one_of(st.integers(3, _MOST_TOKENS), st.integers(1, 2)),
        sampling=st.sampled_from([GREEDY, _SEEDED]),
        at_boundary=st.booleans(),
        stays_turns=st.one_of(st.none(), st.none(), st.integers(0, 12)),
        longer=st.integers(0, 3),
        echoes=st.sampled_from([False, False, False, True]),
        stops=st.sampled_from([False, False, False, True]),
        choices=st.sampled_from([1, 1, 1, _MOST_CHOICES]),
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
            sampling=st.sampled_from([GREEDY, _SEEDED]),
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


class Kind:
    """One model, its oracle, and what the engines over it have shown so far."""

    def __init__(self, name: str, kv_cache_dtype: KvCacheDtype = "auto") -> None:
        self._kv_cache_dtype, packing = kv_cache_dtype, PACKINGS[kv_cache_dtype]
        with nullcontext() if packing is None else wide_heads():
            self._model, self._type = build(name, **(SMALL if name in _SMALL else {}))
        self._alone = Alone(self._model)
        self._rule = None if packing is None else Rule(self._model, self._model, packing)
        self.batching: Batching = checked(self._model, self._type, kv_cache_dtype)
        self.most_rows = 0
        self.cached_tokens = 0

    def check(self, visits: list[Visit], seed: int) -> None:
        engine = Engine(self._model, self._type, self.batching, seed, kv_cache_dtype=self._kv_cache_dtype)
        arrivals: dict[int, list[Submit]] = {}
        leaves: dict[int, list[int]] = {}
        turn = 0
        for number, visit in enumerate(visits):
            turn += visit.after_turns
            submits = list(visit.submits(_MOST_CHOICES * number, self._first_token))
            if self._rule is not None:  # Rounding may decide what is a stop token.
                submits = [msgspec.structs.replace(submit, stop_token_ids=()) for submit in submits]
            arrivals.setdefault(turn, []).extend(submits)
            if visit.stays_turns is not None:
                leaving = leaves.setdefault(turn + visit.stays_turns, [])
                leaving.extend(submit.request_id for submit in submits)
        engine.run(arrivals, leaves)
        left = {number for those in leaves.values() for number in those}
        for submit in (submit for those in arrivals.values() for submit in those):
            found = engine.heard[submit.request_id]
            tokens = len(found.tokens) if submit.request_id in left else submit.max_tokens
            wrong = self._difference(found, submit, tokens)
            assert wrong is None, (submit.request_id, wrong)
            if submit.prompt_logprobs is not None:
                self._check_prompt(found, submit, submit.request_id in left)
        self.most_rows = max(self.most_rows, engine.most_rows)
        self.cached_tokens += engine.cached_tokens

    def _difference(self, found: Answer, submit: Submit, tokens: int) -> str | None:
        if self._rule is None:
            return difference(found, self._expected(submit, tokens))
        if not tokens:
            return None if not found.tokens else "wrong tokens: too many"
        return self._rule.difference(found, msgspec.structs.replace(submit, max_tokens=tokens))

    def _check_prompt(self, found: Answer, submit: Submit, left: bool) -> None:
        """Hold the log-probabilities of its prompt to mlx-lm's. Who left has a part of it."""
        prompt = submit.prompt
        assert len(found.prompt) == len(prompt) - 1 or (left and not found.tokens), submit.request_id
        if self._rule is None:
            expected = self._alone.prompt_logprobs(prompt)[: len(found.prompt)]
            assert found.prompt == pytest.approx(expected, abs=ROUNDING), submit.request_id

    def _first_token(self, submit: Submit) -> int:
        return self._whole(submit).tokens[0]

    def _whole(self, submit: Submit) -> Answer:
        return self._alone.answer(msgspec.structs.replace(submit, max_tokens=_MOST_TOKENS))

    def _expected(self, submit: Submit, tokens: int) -> Answer:
        whole = self._whole(submit)
        ends = (at for at, token in enumerate(whole.tokens, 1) if token in submit.stop_token_ids)
        tokens = min(tokens, next(ends, tokens))
        return Answer(whole.tokens[:tokens], whole.logprobs[:tokens], whole.leads[:tokens])


def _meet(kind: Kind, visits: st.SearchStrategy[list[Visit]] = _VISITS, count: int = _EXAMPLES) -> None:
    @settings(max_examples=count, derandomize=True, deadline=None, database=None)
    @given(visits=visits, seed=st.integers(0, 1 << 16))
    def meet(visits: list[Visit], seed: int) -> None:
        kind.check(visits, seed)

    meet()


@pytest.mark.timeout(60 + 10 * _EXAMPLES)
@pytest.mark.parametrize("name", sampled(KINDS, ("gpt_oss", "llama4", "qwen3_next")))
def test_in_any_company_each_has_its_own_tokens(name: str) -> None:
    """Random lengths, prefixes, joins and leaves in random prefill budgets. They do meet, and they do find
    prefixes, where the model may have any."""
    kind = Kind(name)
    _meet(kind)
    assert kind.most_rows > 2
    assert (kind.cached_tokens > 0) == kind.batching.prefixes


@pytest.mark.timeout(60 + 3 * _PAIRS_EXAMPLES)
@pytest.mark.parametrize("name", sampled(KINDS, ("gpt_oss", "qwen3_next")))
def test_where_one_prompt_is_the_beginning_of_another_each_has_its_own_tokens(name: str) -> None:
    """Equal, or longer by a few tokens; they come in one turn or apart, end with their first token or their
    second, ask for their prompt's log-probabilities, and leave in that turn."""
    _meet(Kind(name), _RELATED, _PAIRS_EXAMPLES)


@pytest.mark.long
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("name", KINDS)
def test_so_it_is_in_many_schedules(name: str) -> None:
    kind = Kind(name)
    _meet(kind, _RELATED, 200)
    _meet(kind, _VISITS, 40)


@pytest.mark.timeout(60 + 10 * _EXAMPLES)
@pytest.mark.parametrize("name", sampled(["qwen3", "deepseek_v3", "gpt_oss", "qwen3_next"], ["qwen3"]))
@pytest.mark.parametrize("kv_cache_dtype", sampled(["q8", "k8v4", "q4"], ["q8"]))
def test_so_has_each_where_keys_and_values_are_packed(name: str, kv_cache_dtype: KvCacheDtype) -> None:
    """Within less than packing itself changes (`rounding.py`)."""
    kind = Kind(name, kv_cache_dtype)
    _meet(kind)
    assert kind.most_rows > 2
    assert kind.cached_tokens > 0


@pytest.mark.parametrize("wrong", ["token", "probability"])
def test_a_wrong_answer_is_found(wrong: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Were one token of a row another, or a little likelier, the driver would say so."""
    kind = Kind("qwen3")
    heard = Engine.iterate

    def spoilt(engine: Engine, *arguments: Any) -> None:
        heard(engine, *arguments)
        answer = engine.heard.get(_MOST_CHOICES)
        if answer is not None and len(answer.tokens) == 3:
            answer.tokens[1] += wrong == "token"
            answer.logprobs[1] += 0.01 * (wrong == "probability")

    monkeypatch.setattr(Engine, "iterate", spoilt)
    visits = [Visit(at, 1, 5 + at, 0, 6, GREEDY, True, None) for at in range(3)]
    with pytest.raises(AssertionError, match=f"wrong {'tokens' if wrong == 'token' else 'logits'}: token 1"):
        kind.check(visits, 3)
