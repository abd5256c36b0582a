"""From logits to a token: keys by position, mlx-lm's distributions, vLLM's penalties, failures alone."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import mlx.core as mx
import msgspec
import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from mlx_lm.sample_utils import make_sampler

from scheduler.engine.mlx.sampling.draw import Noise, gumbel, position_key
from scheduler.engine.mlx.sampling.host_chooser import host_gumbel
from scheduler.engine.mlx.sampling.row_sampling import RowSampling
from scheduler.engine.mlx.sampling.rows_sampler import RowsSampler
from scheduler.errors import RequestRefused
from scheduler.shared.messages import Sampling
from tests.contracts.journal import GREEDY, Journal, alone, prompt_of, request
from tests.examples import examples
from tests.scheduler.engine.mlx.conftest import Tiny
from tests.scheduler.engine.mlx.sampling.row_sampler import LogitsAdjustment, RowSampler, tempered, uncompiled

_replace = msgspec.structs.replace
_IN_BOTH = pytest.mark.parametrize("noise", [gumbel, host_gumbel], ids=["in the graph", "on the host"])
_PLAIN = _replace(GREEDY, temperature=1.0)
_VOCABULARY = 12
_DRAWS = 20_000


def _logprobs(seed: int = 3) -> mx.array:
    """Log-probabilities of a small vocabulary, (1, vocabulary); the best has about a third."""
    logits = np.random.default_rng(seed).normal(0, 1.5, (1, _VOCABULARY)).astype(np.float32)
    array = mx.array(logits)
    return array - mx.logsumexp(array, axis=-1, keepdims=True)


def _shares(tokens: mx.array) -> npt.NDArray[np.float64]:
    return np.bincount(np.array(tokens), minlength=_VOCABULARY) / tokens.size


def _drawn(samplers: Sequence[RowSampler]) -> mx.array:
    """One draw of each."""
    logprobs = _logprobs()
    return mx.concatenate([sampler(logprobs) for sampler in samplers])


def _expected(params: Sampling, logprobs: mx.array, heat: float = 1.0) -> npt.NDArray[np.float64]:
    """Return the shares of tokens that mlx-lm's sampler draws of the tempered distribution. `heat`: a
    temperature of its own, which it has behind the cut-offs."""
    sampler = make_sampler(temp=heat, top_p=params.top_p, min_p=params.min_p, top_k=params.top_k)
    with uncompiled():
        return _shares(sampler(tempered(logprobs, params.temperature)))


def test_keys_do_not_collide() -> None:
    """Over small and large seeds and every position of a long answer, no two keys are equal."""
    seeds = [*range(100), *((1 << 63) - 1 - n for n in range(100)), *(1 << n for n in range(7, 64))]
    keys = {position_key(seed, position) for seed in seeds for position in range(1000)}
    assert len(keys) == len(seeds) * 1000
    assert all(0 <= key < 1 << 64 for key in keys)


def test_one_bit_changes_the_key_all_over() -> None:
    """One other bit of the seed or of the position changes at least 12 of the key's 64, 32 on average."""
    changed = []
    for seed, position in [(0, 0), (1, 1), (0x1234_5678_9ABC_DEF0, 4095), ((1 << 64) - 1, 100_000)]:
        key = position_key(seed, position)
        changed += [(key ^ position_key(seed ^ (1 << bit), position)).bit_count() for bit in range(64)]
        changed += [(key ^ position_key(seed, position ^ (1 << bit))).bit_count() for bit in range(40)]
    assert min(changed) >= 12
    assert 31 < sum(changed) / len(changed) < 33


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


_CUTS: list[dict[str, Any]] = [
    {},
    {"temperature": 1.7},
    {"top_p": 0.8},
    {"top_k": 3},
    {"min_p": 0.2},
    {"top_p": 0.9, "top_k": 4, "min_p": 0.05},
    {"temperature": 0.5},
    {"temperature": 1.4, "top_p": 0.7, "min_p": 0.1},
    {"temperature": 0.7, "top_k": 6, "min_p": 0.02},
    {"top_p": 0.01},
    {"top_k": 1, "temperature": 2.0},
]


@_IN_BOTH
@pytest.mark.parametrize("cuts", _CUTS, ids=str)
def test_the_distribution_is_the_tempered_one_with_mlx_lm_s_cuts(cuts: dict[str, Any], noise: Noise) -> None:
    """Tokens come with the probabilities of mlx-lm's sampler, and none comes that it would cut off."""
    params = _replace(_PLAIN, **cuts)
    logprobs = mx.broadcast_to(_logprobs(), (_DRAWS, _VOCABULARY))
    mx.random.seed(1)
    expected = _expected(params, logprobs)
    # One key for all rows of a batch is no use of ours, but it draws thousands from one distribution.
    shares = _shares(RowSampler(params, noise=noise)(logprobs))
    assert 0.5 * np.abs(shares - expected).sum() < 0.02, "total variation"
    kept = _expected(params, logprobs, heat=50.0) > 0
    assert kept[shares > 0].all()
    by_seed = _drawn([RowSampler(_replace(params, seed=seed), noise=noise) for seed in range(100)])
    assert kept[np.array(by_seed)].all()


@_IN_BOTH
def test_seeds_and_positions_draw_independently(noise: Noise) -> None:
    """2000 seeds at one position, and 2000 positions of one seed, each give the whole distribution, and
    a draw says nothing about the one after it."""
    params = _replace(_PLAIN, top_p=0.9)
    mx.random.seed(1)
    expected = _expected(params, mx.broadcast_to(_logprobs(), (_DRAWS, _VOCABULARY)))
    by_seed = _drawn([RowSampler(_replace(params, seed=seed), noise=noise) for seed in range(2000)])
    by_position = _drawn([RowSampler(params, noise=noise)] * 2000)
    for drawn in (by_seed, by_position):
        assert 0.5 * np.abs(_shares(drawn) - expected).sum() < 0.05, "total variation"
        pairs = np.zeros((_VOCABULARY, _VOCABULARY))
        np.add.at(pairs, (np.array(drawn[:-1]), np.array(drawn[1:])), 1 / (drawn.size - 1))
        assert 0.5 * np.abs(pairs - np.outer(expected, expected)).sum() < 0.1, "pairs are not independent"


@pytest.mark.parametrize("top_k", [0, _VOCABULARY, _VOCABULARY + 1, 1 << 30])
def test_a_cut_beyond_the_vocabulary_cuts_nothing(top_k: int) -> None:
    """mlx-lm's own function raises there; a client may well ask for it."""
    params = [_replace(_PLAIN, top_k=top_k, seed=seed) for seed in range(50)]
    plain = [_replace(_PLAIN, seed=seed) for seed in range(50)]
    assert mx.array_equal(_drawn([RowSampler(p) for p in params]), _drawn([RowSampler(p) for p in plain]))


def test_a_sampler_can_start_at_a_position() -> None:
    """Computed again from the middle, the draws go on as they would have."""
    whole = RowSampler(_PLAIN)
    expected = [whole(_logprobs()).item() for _ in range(20)]
    rest = RowSampler(_PLAIN, position=8)
    assert [rest(_logprobs()).item() for _ in range(12)] == expected[8:]


def test_draws_do_not_touch_mlx_s_own_random_state() -> None:
    """No stream is drawn from, so nobody's draws depend on how many others there were."""
    mx.random.seed(5)
    expected = mx.random.uniform(shape=(4,)).tolist()
    mx.random.seed(5)
    _drawn([RowSampler(_replace(_PLAIN, top_p=0.9, min_p=0.1, top_k=5))] * 10)
    assert mx.random.uniform(shape=(4,)).tolist() == expected


def _vllm(
    logits: npt.NDArray[np.float32], prompt: list[int], output: list[int], params: Sampling
) -> npt.NDArray[np.float32]:
    """vLLM's order and arithmetic: bias, then repetition over prompt and output, then frequency and
    presence over output."""
    logits = logits.copy()
    for token, bias in params.logit_bias:
        logits[token] += bias
    for token in {*prompt, *output}:
        factor = params.repetition_penalty
        logits[token] = logits[token] / factor if logits[token] > 0 else logits[token] * factor
    for token in set(output):
        logits[token] -= params.frequency_penalty * output.count(token)
        logits[token] -= params.presence_penalty
    return logits


_tokens = st.integers(0, _VOCABULARY - 1)
_penalty = st.one_of(st.just(0.0), st.floats(-2, 2, width=32))


@settings(derandomize=True, deadline=None, max_examples=examples(200))
@given(
    logits=st.lists(st.floats(-20, 20, width=32), min_size=_VOCABULARY, max_size=_VOCABULARY),
    prompt=st.lists(_tokens, min_size=1, max_size=8),
    output=st.lists(_tokens, max_size=12),
    repetition=st.one_of(st.just(1.0), st.floats(0.125, 2, width=32)),
    presence=_penalty,
    frequency=_penalty,
    bias=st.dictionaries(_tokens, st.floats(-100, 100, width=32), max_size=3),
)
def test_the_adjustment_is_vllm_s(
    logits: list[float],
    prompt: list[int],
    output: list[int],
    repetition: float,
    presence: float,
    frequency: float,
    bias: dict[int, float],
) -> None:
    """Penalties and bias in any mix agree with a plain reading of vLLM's, for any prompt and output."""
    params = _replace(
        GREEDY,
        repetition_penalty=repetition,
        presence_penalty=presence,
        frequency_penalty=frequency,
        logit_bias=tuple(bias.items()),
    )
    expected = _vllm(np.array(logits, dtype=np.float32), prompt, output, params)
    adjustment = LogitsAdjustment(params, len(prompt), _VOCABULARY)
    adjusted = np.array(adjustment(mx.array(prompt + output), mx.array([logits])))
    np.testing.assert_allclose(adjusted, expected[None], rtol=1e-5, atol=1e-4)
    if not LogitsAdjustment.wanted(params):
        assert adjusted.tolist() == mx.array([logits]).tolist()


_BROKEN: list[dict[str, Any]] = [
    {"temperature": "hot"},
    {"repetition_penalty": "much"},
    {"frequency_penalty": "much"},
    {"logit_bias": ((3, "a lot"),)},
]


@pytest.mark.parametrize("broken", _BROKEN, ids=str)
def test_a_row_that_cannot_be_sampled_is_refused_alone(tiny: Tiny, broken: dict[str, Any]) -> None:
    """Before it is anybody's neighbour: those have what they have alone."""
    sampled = _replace(_PLAIN, seed=4, presence_penalty=0.3)
    neighbours = [request(1, prompt_of(9, 41), 9, sampling=sampled), request(3, prompt_of(5, 42), 9)]
    expected = {submit.request_id: alone(tiny.backend(), submit) for submit in neighbours}
    backend = tiny.backend()
    journal = Journal(backend)
    journal.admit(neighbours[0])
    # One field of a wrong type: the wire would refuse it, and nothing else is that easy to break.
    victim = request(2, prompt_of(7, 43), 9, sampling=_replace(GREEDY, **broken))
    with pytest.raises(RequestRefused, match="sampling"):
        journal.admit(victim)
    journal.admit(neighbours[1])
    journal.finish()
    assert {request_id: journal.courses[request_id].tokens for request_id in expected} == expected


_params = st.builds(
    Sampling,
    temperature=st.sampled_from([0.0, 0.3, 1.0, 2.0]),
    top_p=st.sampled_from([1.0, 0.95, 0.5, 0.01]),
    top_k=st.sampled_from([0, 1, 3, 11, _VOCABULARY, 99]),
    min_p=st.sampled_from([0.0, 0.0, 0.1, 1.0]),
    seed=st.integers(0, 1 << 62),
    repetition_penalty=st.sampled_from([1.0, 1.3, 0.7]),
    presence_penalty=st.sampled_from([0.0, 0.6]),
    frequency_penalty=st.sampled_from([0.0, 0.4]),
    logit_bias=st.sampled_from([(), ((2, 3.0),), ((1, -100.0), (5, 1.5))]),
)


@pytest.mark.parametrize("on_host", [False, True], ids=["in the graph", "on the host"])
@settings(deadline=None, max_examples=examples(100))
@given(params=st.lists(_params, min_size=1, max_size=6), data=st.data())
def test_all_rows_at_once_are_what_each_is_alone(
    on_host: bool, params: list[Sampling], data: st.DataObject
) -> None:
    """Any mix of parameters, rows that come and go, some that begin in the middle: token for token what the
    row-by-row reading of mlx-lm's and vLLM's definitions gives."""
    numbers = np.random.default_rng(data.draw(st.integers(0, 1 << 30)))
    prompts = [list(map(int, numbers.integers(0, _VOCABULARY, numbers.integers(1, 6)))) for _ in params]
    begun = [list(map(int, numbers.integers(0, _VOCABULARY, numbers.integers(0, 4)))) for _ in params]
    rows = [
        RowSampling(one, _VOCABULARY, prompt, output, on_host=on_host)
        for one, prompt, output in zip(params, prompts, begun, strict=True)
    ]
    histories = [[*prompt, *output] for prompt, output in zip(prompts, begun, strict=True)]
    oracles = [
        (
            RowSampler(one, len(output), host_gumbel if on_host else gumbel),
            LogitsAdjustment(one, len(prompt), _VOCABULARY),
        )
        for one, prompt, output in zip(params, prompts, begun, strict=True)
    ]
    sampler: RowsSampler | None = None
    for _ in range(data.draw(st.integers(1, 6))):
        there = data.draw(st.lists(st.sampled_from(range(len(rows))), min_size=1, unique=True))
        if sampler is not None:
            sampler.leave()
        sampler = RowsSampler([rows[i] for i in there])
        logits = mx.array(numbers.normal(0, 2, (len(there), _VOCABULARY)).astype(np.float32))
        found: Any = sampler(logits, mx.array([histories[i][-1] for i in there])).tokens.tolist()
        for place, i in enumerate(there):
            draw, adjust = oracles[i]
            alone_logits = adjust(mx.array(histories[i]), logits[place : place + 1])
            logprobs = alone_logits - mx.logsumexp(alone_logits, axis=-1, keepdims=True)
            greedy = params[i].temperature == 0
            expected: Any = (mx.argmax(logprobs, axis=-1) if greedy else draw(logprobs)).item()
            assert found[place] == expected
            histories[i].append(int(expected))
