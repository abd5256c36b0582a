"""From logits to a token: keys by position, and each row what it is alone, whatever its neighbours.

Alone: mlx-lm's cut-offs and vLLM's penalties, row by row (`row_sampler.py`). Both ways to choose, by NumPy
and in MLX's graph, are held to that.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import mlx.core as mx
import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from scheduler.engine.mlx.sampling.chooser import NOT_FINITE
from scheduler.engine.mlx.sampling.draw import Noise, gumbel, position_key
from scheduler.engine.mlx.sampling.host_chooser import host_gumbel
from scheduler.engine.mlx.sampling.penalties import HostCounts
from scheduler.engine.mlx.sampling.row_sampling import RowSampling
from scheduler.engine.mlx.sampling.rows_sampler import RowsSampler
from scheduler.shared.messages import Sampling, ThinkingBudget
from scheduler.shared.thinking import ThinkingLimit
from tests.contracts.journal import GREEDY
from tests.examples import examples
from tests.scheduler.engine.mlx.sampling.row_sampler import LogitsAdjustment, RowSampler

_replace = msgspec.structs.replace
_IN_BOTH = pytest.mark.parametrize("noise", [gumbel, host_gumbel], ids=["in the graph", "on the host"])
_VOCABULARY = 12


def test_keys_do_not_collide() -> None:
    """Over small and large seeds and every position of a long answer, no two keys are equal."""
    seeds = [*range(100), *((1 << 63) - 1 - n for n in range(100)), *(1 << n for n in range(7, 64))]
    keys = {position_key(seed, position) for seed in seeds for position in range(1000)}
    assert len(keys) == len(seeds) * 1000
    assert all(0 <= key < 1 << 64 for key in keys)


@_IN_BOTH
def test_random_numbers_are_of_gumbel_s_distribution(noise: Noise) -> None:
    """By the test of Kolmogorov and Smirnov, without a trace of the key or the token before, and each key's
    by themselves."""
    keys = [position_key(seed, position) for seed in range(30) for position in range(30)]
    numbers = np.array(noise(keys, 300)).astype(np.float64)
    assert np.array_equal(numbers[5:6], np.array(noise(keys[5:6], 300)))
    cumulated = np.sort(np.exp(-np.exp(-numbers.ravel())))
    distance = np.max(np.abs(cumulated - (np.arange(cumulated.size) + 0.5) / cumulated.size))
    assert distance < 1.63 / np.sqrt(cumulated.size), "one in a hundred is further off"
    for near, far in ((numbers[1:], numbers[:-1]), (numbers[:, 1:], numbers[:, :-1])):
        assert abs(np.corrcoef(near.ravel(), far.ravel())[0, 1]) < 0.01


def test_mlx_uses_all_bits_of_a_key() -> None:
    """Keys that differ in the upper half alone, or in the lower, draw differently."""
    draws = {str(mx.random.uniform(shape=(4,), key=mx.random.key(1 << bit)).tolist()) for bit in range(64)}
    assert len(draws) == 64


_tokens = st.integers(0, _VOCABULARY - 1)
_params = st.builds(
    Sampling,
    temperature=st.sampled_from([0.0, 0.3, 1.0, 2.0]),
    top_p=st.sampled_from([1.0, 0.95, 0.5, 0.01]),
    top_k=st.sampled_from([0, 1, 3, 11, _VOCABULARY, 99]),
    min_p=st.sampled_from([0.0, 0.0, 0.1, 1.0]),
    seed=st.integers(0, 1 << 62),
    repetition_penalty=st.sampled_from([1.0, 1.3, 0.7, 0.01, 10.0]),
    presence_penalty=st.sampled_from([0.0, 0.6, -2.0]),
    frequency_penalty=st.sampled_from([0.0, 0.4, -2.0]),
    logit_bias=st.sampled_from([(), (), (), ((2, 3.0),), ((1, -100.0), (5, 1.5)), ((9, 100.0),)]),
)
_budgets = st.builds(
    ThinkingBudget,
    tokens=st.integers(0, 3),
    start=st.sampled_from([(3,), (3, 4)]),
    end=st.sampled_from([(9,), (9, 10)]),
    opens=st.booleans(),
    anywhere=st.just(True),
)


@dataclass(frozen=True, slots=True)
class _Asked:
    """A row when it joins: `output` is of another engine."""

    params: Sampling
    prompt: list[int]
    output: list[int]
    min_tokens: int
    stops: tuple[int, ...]
    thinking: ThinkingBudget | None
    masked: frozenset[int]
    """Tokens that its logits hold back."""


_asked = st.builds(
    _Asked,
    params=_params,
    prompt=st.lists(_tokens, min_size=1, max_size=5),
    output=st.lists(_tokens, max_size=3),
    min_tokens=st.sampled_from([0, 0, 2, 5]),
    stops=st.sampled_from([(), (3,), (1, 8, 9), (9, 10)]),
    thinking=st.one_of(st.none(), st.none(), st.none(), _budgets),
    masked=st.sampled_from([frozenset[int](), frozenset({0, 2, 6, 7, 8})]),
)


class _Alone:
    """A row as it is alone."""

    def __init__(self, asked: _Asked, on_host: bool) -> None:
        self._asked = asked
        self.history = [*asked.prompt, *asked.output]
        noise = host_gumbel if on_host else gumbel
        self._draw = RowSampler(asked.params, len(asked.output), noise)
        self._adjust = LogitsAdjustment(asked.params, len(asked.prompt), _VOCABULARY)
        self._limit = None if asked.thinking is None else ThinkingLimit(asked.thinking, asked.output)

    def next(self, logits: mx.array) -> int:
        asked, forbidden = self._asked, list[int]()
        if len(self.history) - len(asked.prompt) < asked.min_tokens:
            forbidden += asked.stops
        if self._limit is not None and (held := self._limit.held(0)) is not None:
            forbidden.append(held.token)
        logits = self._adjust(mx.array(self.history), logits)
        if forbidden:
            logits[:, mx.array(forbidden)] = -math.inf
        logprobs = logits - mx.logsumexp(logits, axis=-1, keepdims=True)
        drawn = mx.argmax(logprobs, axis=-1) if asked.params.temperature == 0 else self._draw(logprobs)
        token = int(drawn)
        if self._limit is not None:
            token = token if self._limit.forced is None else self._limit.forced
            self._limit.accept(token)
        self.history.append(token)
        return token


def _uncut(one: _Asked) -> _Asked:
    return replace(one, params=_replace(one.params, top_p=1.0, top_k=0, min_p=0.0))


_BAD: dict[str, Callable[[Any], None]] = {
    "all NaN": lambda row: row.fill(math.nan),
    "a first NaN": lambda row: row.put(0, math.nan),
    "a NaN between": lambda row: row.put(6, math.nan),
    "a last NaN": lambda row: row.put(_VOCABULARY - 1, math.nan),
    "an infinity": lambda row: row.put(5, math.inf),
    "nothing left": lambda row: row.fill(-math.inf),
}


@pytest.mark.parametrize("on_host", [False, True], ids=["in the graph", "on the host"])
@settings(deadline=None, max_examples=examples(200))
@given(asked=st.lists(_asked, min_size=1, max_size=6), data=st.data())
def test_all_rows_at_once_are_what_each_is_alone(
    on_host: bool, asked: list[_Asked], data: st.DataObject
) -> None:
    """Any mix of parameters, minimum lengths and thinking budgets, rows that come and go, some that begin in
    the middle, tokens that the host knows a step later, and a row whose logits are no numbers: it fails, and
    the others have their tokens. In 16 bits too, where ties are common: without cut-offs, of which mlx-lm's
    keep some of several equal tokens."""
    numbers = np.random.default_rng(data.draw(st.integers(0, 1 << 30)))
    dtype = data.draw(st.sampled_from([mx.float32, mx.float32, mx.bfloat16, mx.float16]))
    if dtype != mx.float32:
        asked = [_uncut(one) for one in asked]
    rows = [
        RowSampling(
            one.params,
            _VOCABULARY,
            one.prompt,
            one.output,
            min_tokens=one.min_tokens,
            stop_token_ids=one.stops,
            thinking=None if one.thinking is None else ThinkingLimit(one.thinking, one.output),
            on_host=on_host,
        )
        for one in asked
    ]
    alone = [_Alone(one, on_host) for one in asked]
    living = list(range(len(rows)))
    sampler: RowsSampler | None = None
    there = list[int]()
    for _ in range(data.draw(st.integers(1, 10))):
        if sampler is None or not {*there} <= {*living} or data.draw(st.integers(0, 2)) == 0:
            if sampler is not None:
                sampler.leave()
            some = st.lists(st.sampled_from(living), min_size=1, unique=True)
            there = data.draw(st.just(list(living)) | some)
            sampler = RowsSampler([rows[i] for i in there])
        logits = numbers.normal(0, 2, (len(there), _VOCABULARY)).astype(np.float32)
        for place, i in enumerate(there):
            logits[place, list(asked[i].masked)] = -math.inf
        broken = data.draw(st.sampled_from([None] * 9 + [*range(len(there))]))
        if broken is not None:
            # A forced token is taken from any logits but NaN.
            only_nan = asked[there[broken]].thinking is not None
            kinds = [kind for kind in sorted(_BAD) if "NaN" in kind or not only_nan]
            _BAD[data.draw(st.sampled_from(kinds))](logits[broken])
        last = [alone[i].history[-1] for i in there]
        if sampler.needs_inputs or data.draw(st.booleans()):
            sampler.advance(last)
        given_logits = mx.array(logits).astype(dtype)
        chosen = sampler(given_logits, mx.array(last))
        chosen.verify()
        found: Any = chosen.tokens.tolist()
        assert chosen.tokens.dtype == mx.uint32
        for place, i in enumerate(there):
            if place == broken:
                # The step in flight takes it as its input.
                assert 0 <= found[place] < _VOCABULARY
                assert rows[i].failure == NOT_FINITE
                living.remove(i)
                continue
            assert rows[i].failure is None
            if (limit := rows[i].thinking) is not None and rows[i].position - 1 > len(asked[i].output):
                limit.accept_at(rows[i].position - 2, last[place])
            assert found[place] == alone[i].next(given_logits[place : place + 1]), (i, asked[i])
        if not living:
            return


@pytest.mark.parametrize(("last", "expected"), [(8, 5), (7, 9)], ids=["in the mark", "elsewhere"])
def test_of_a_long_mark_only_its_own_continuation_is_held(last: int, expected: int) -> None:
    """After the mark's first token, which the host does not know yet: the step that drew it has not ended."""
    budget = ThinkingBudget(tokens=1, start=(8, 9, 10), end=(11,), anywhere=True, held=1)
    output = (8, 9, 10, 4, 11)
    row = RowSampling(GREEDY, _VOCABULARY, [1], output, thinking=ThinkingLimit(budget, output))
    row.position += 1
    logits = mx.zeros((1, _VOCABULARY))
    logits[0, 9], logits[0, 5] = 9.0, 1.0
    sampler = RowsSampler([row])
    assert not sampler.needs_inputs
    assert sampler(logits, mx.array([last])).tokens.tolist() == [expected]


def test_the_host_s_errors_are_the_row_s(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever raises for one row is that row's failure, and says what it was."""

    def penalise(*_: object) -> None:
        raise IndexError("index -1 is out of bounds")

    monkeypatch.setattr(HostCounts, "penalise", penalise)
    params = [GREEDY, _replace(GREEDY, presence_penalty=1.0), _replace(GREEDY, temperature=1.0, top_p=0.9)]
    rows = [RowSampling(one, _VOCABULARY, [1, 2], on_host=True) for one in params]
    logits = mx.random.normal((3, _VOCABULARY))
    chosen = RowsSampler(rows)(logits, mx.array([2] * 3))
    chosen.verify()
    assert [row.failure is None for row in rows] == [True, False, True]
    assert "IndexError: index -1 is out of bounds" in str(rows[1].failure)
    assert int(chosen.tokens[0]) == int(mx.argmax(logits[0]))
