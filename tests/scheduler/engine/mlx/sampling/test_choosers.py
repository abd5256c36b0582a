"""Both ways to choose tokens, in MLX's graph and by NumPy, keep one contract and give the same tokens.

Tolerances. Penalties, temperature and the draw are the same float32 operations in the same order: tokens are
equal. Cut-offs are not: the graph finds a threshold by bisection to 1e-6 of a logit and sums the mass in
float32, the host sorts and sums in float64. So logits here lie on a grid of 1/8 (some equal, none nearly),
and cases whose mass comes within 1e-4 of `top_p` at a step of the grid are left out.
"""

from __future__ import annotations

import math
import weakref
from array import array
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import mlx.core as mx
import msgspec
import numpy as np
import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from scheduler.engine.mlx.sampling.chooser import NOT_FINITE, Chooser
from scheduler.engine.mlx.sampling.graph_chooser import GraphChooser
from scheduler.engine.mlx.sampling.host_chooser import HostChooser, host_gumbel
from scheduler.engine.mlx.sampling.penalties import HostCounts, TokenCounts
from scheduler.engine.mlx.sampling.row_sampling import RowSampling
from scheduler.engine.mlx.sampling.rows_sampler import RowsSampler
from scheduler.shared.messages import Sampling
from tests.contracts.journal import GREEDY
from tests.examples import examples

VOCABULARY = 24
_replace = msgspec.structs.replace
_WARM = _replace(GREEDY, temperature=1.0, seed=5)
_CUT = _replace(_WARM, top_p=0.9)

Make: TypeAlias = Callable[[Sequence[RowSampling]], Chooser]


class Kind:
    """One of the two, with rows whose counts it can read."""

    def __init__(self, name: str, on_host: bool, make: Make) -> None:
        self.name, self.on_host, self.make = name, on_host, make

    def row(self, params: Sampling, prompt: Sequence[int] = (1, 2), **rest: Any) -> RowSampling:
        return RowSampling(params, VOCABULARY, prompt, on_host=self.on_host, **rest)

    def tokens(self, params: Sequence[Sampling], logits: Any, steps: int = 1) -> list[list[int]]:
        """What rows with these parameters get, step by step, of the same logits each time."""
        rows = [self.row(one) for one in params]
        chooser = self.make(rows)
        inputs, found = mx.array([2] * len(rows)), []
        for _ in range(steps):
            chosen = chooser(mx.array(logits), inputs)
            chosen.verify()
            assert [row.failure for row in rows] == [None] * len(rows)
            inputs = chosen.tokens
            found.append(_ids(inputs))
            for row in rows:
                row.position += 1
        chooser.leave()
        return found


GRAPH = Kind("graph", False, lambda rows: GraphChooser(rows, host_gumbel))
HOST = Kind("host", True, HostChooser)
both = pytest.mark.parametrize("kind", [GRAPH, HOST], ids=lambda kind: kind.name)


def _ids(tokens: mx.array) -> list[int]:
    return [int(token) for token in np.array(tokens)]


def _logits(rows: int, seed: int = 0) -> Any:
    return np.round(np.random.default_rng(seed).normal(0, 2, (rows, VOCABULARY)) * 8).astype(np.float32) / 8


@both
def test_the_best_token_or_a_draw_for_each_row(kind: Kind) -> None:
    """Greedy rows get the argmax beside rows that draw; ids are uint32, scores are finite."""
    logits = _logits(4)
    rows = [kind.row(one) for one in (GREEDY, _WARM, GREEDY, _CUT)]
    chosen = kind.make(rows)(mx.array(logits), mx.array([2] * 4))
    assert chosen.tokens.dtype == mx.uint32
    assert chosen.scores.shape == (4,)
    best = logits.argmax(axis=-1)
    tokens = np.array(chosen.tokens)
    assert (tokens[0], tokens[2]) == (best[0], best[2])
    assert np.isfinite(np.array(chosen.scores)).all()
    assert all(row.position == 0 for row in rows), "positions are the caller's"


@both
@pytest.mark.parametrize(
    ("params", "kept"),
    [
        ({"temperature": 1.0, "top_p": 0.8}, 2),
        ({"temperature": 0.5, "top_p": 0.8}, 1),
        ({"temperature": 1.0, "min_p": 0.3}, 2),
        ({"temperature": 2.0, "min_p": 0.3}, 3),
        ({"temperature": 2.0, "min_p": 0.3, "top_k": 2}, 2),
    ],
    ids=str,
)
def test_the_temperature_comes_before_the_cut_offs(kind: Kind, params: dict[str, Any], kept: int) -> None:
    """As in transformers, vLLM and SGLang; mlx-lm and llama.cpp cut first, and keep 2 tokens of each."""
    logits = np.full((200, VOCABULARY), -50, np.float32)
    logits[:, :3] = [3.0, 2.0, 1.0]
    rows = [_replace(_WARM, seed=seed, **params) for seed in range(200)]
    assert set(kind.tokens(rows, logits)[0]) == set(range(kept))


@both
def test_what_is_held_back_is_never_chosen(kind: Kind) -> None:
    """-inf stays out, whatever penalties, bias of a temperature or cut-offs do with it."""
    logits = _logits(5)
    logits[:, 3:] = -math.inf
    punished = _replace(_CUT, repetition_penalty=0.01, frequency_penalty=-2.0, presence_penalty=-2.0)
    params = [
        GREEDY,
        _WARM,
        punished,
        _replace(punished, temperature=0.0),
        _replace(_CUT, min_p=0.1, top_k=50),
    ]
    for step in kind.tokens(params, logits, 40):
        assert max(step) < 3


@both
def test_a_cut_of_one_leaves_the_best(kind: Kind) -> None:
    """By number, by mass and by share of the best."""
    logits = _logits(3)
    logits[:, 7] = 9.0
    params = [
        _replace(_WARM, **{name: value}) for name, value in (("top_k", 1), ("top_p", 1e-300), ("min_p", 1.0))
    ]
    assert kind.tokens(params, logits, 20) == [[7, 7, 7]] * 20


@both
def test_penalties_count_what_was_said(kind: Kind) -> None:
    """Both keep counts of their own between steps, and `leave` hands them on."""
    flat = np.zeros((1, VOCABULARY), np.float32)
    row = kind.row(_replace(GREEDY, frequency_penalty=1.0))
    inputs, said = mx.array([2]), []
    for _ in range(2):
        chooser = kind.make([row])
        for _ in range(VOCABULARY // 2):
            inputs = chooser(mx.array(flat), inputs).tokens
            row.position += 1
            said += _ids(inputs)
        chooser.leave()
    assert sorted(said) == list(range(VOCABULARY)), "each token once before any comes twice"


_BAD: dict[str, Callable[[Any], None]] = {
    "all NaN": lambda row: row.fill(math.nan),
    "a first NaN": lambda row: row.put(0, math.nan),
    "a NaN between": lambda row: row.put(11, math.nan),
    "a last NaN": lambda row: row.put(VOCABULARY - 1, math.nan),
    "an infinity": lambda row: row.put(9, math.inf),
    "nothing left": lambda row: row.fill(-math.inf),
}


@both
@pytest.mark.parametrize("bad", _BAD)
@pytest.mark.parametrize(
    "victim", [GREEDY, _WARM, _CUT, _replace(_WARM, top_k=3), _replace(_WARM, min_p=0.1)], ids=str
)
def test_a_row_without_finite_logits_fails_alone(kind: Kind, bad: str, victim: Sampling) -> None:
    """Its neighbours have the tokens that they have beside a healthy row; its own id is still one of the
    vocabulary, for the step in flight takes it as its input."""
    logits = _logits(6)
    params = [GREEDY, _WARM, victim, _CUT, _replace(_CUT, presence_penalty=0.5), _replace(GREEDY, top_k=3)]
    (healthy,) = kind.tokens(params, logits)
    _BAD[bad](logits[2])
    rows = [kind.row(one) for one in params]
    chosen = kind.make(rows)(mx.array(logits), mx.array([2] * 6))
    chosen.verify()
    tokens = _ids(chosen.tokens)
    assert [*tokens[:2], *tokens[3:]] == [*healthy[:2], *healthy[3:]]
    assert 0 <= tokens[2] < VOCABULARY
    assert rows[2].failure == NOT_FINITE
    assert [row.failure for row in rows if row is not rows[2]] == [None] * 5


_params = st.builds(
    Sampling,
    temperature=st.sampled_from([0.0, 0.3, 1.0, 2.0]),
    top_p=st.sampled_from([1.0, 0.95, 0.5, 0.01]),
    top_k=st.sampled_from([0, 1, 3, 11, 99]),
    min_p=st.sampled_from([0.0, 0.0, 0.1, 1.0]),
    seed=st.integers(0, 1 << 62),
    repetition_penalty=st.sampled_from([1.0, 1.3, 0.7, 0.01, 10.0]),
    presence_penalty=st.sampled_from([0.0, 0.6, -2.0]),
    frequency_penalty=st.sampled_from([0.0, 0.4, -2.0]),
)


def _is_clear(logits: Any, params: Sampling) -> bool:
    """Whether the mass of the best tokens is not near `top_p` where one more logit is let in."""
    if not 0.0 < params.top_p < 1.0:
        return True
    ordered = np.sort(logits.astype(np.float64))[::-1]
    mass = np.cumsum(np.exp(ordered - ordered[0]))
    return bool(np.min(np.abs(mass / mass[-1] - params.top_p)) > 1e-4)


@settings(deadline=None, max_examples=examples(150), suppress_health_check=[HealthCheck.filter_too_much])
@given(
    params=st.lists(_params, min_size=1, max_size=6), seed=st.integers(0, 1 << 30), held=st.integers(0, 20)
)
def test_both_choose_the_same(params: list[Sampling], seed: int, held: int) -> None:
    """Any mix of parameters, some tokens held back: the same ids from both, with the same random numbers."""
    logits = _logits(len(params), seed)
    logits[:, np.random.default_rng(seed).permutation(VOCABULARY)[:held]] = -math.inf
    # The first step penalises the prompt only: so the logits that are cut are known here.
    for row, one in zip(logits, params, strict=True):
        penalised = row.copy()
        HostCounts.of([1, 2], [], VOCABULARY).penalise(penalised, one)
        penalised /= np.float32(one.temperature or 1.0)
        assume(_is_clear(penalised, one))
    assert HOST.tokens(params, logits) == GRAPH.tokens(params, logits)


_ROUNDING = 1e-5


def _cut_by_rounding(penalised: np.ndarray[Any, Any], one: Sampling) -> bool:
    """Whether rounding decides which token a cut-off drops."""
    best_first = np.sort(penalised)[::-1]
    if 0 < one.top_k < best_first.size and best_first[one.top_k - 1] - best_first[one.top_k] < _ROUNDING:
        return True
    return one.min_p > 0 and bool(np.abs(best_first - best_first[0] - np.log(one.min_p)).min() < _ROUNDING)


@settings(deadline=None, max_examples=examples(60))
@given(
    params=st.lists(_params.map(lambda one: _replace(one, top_p=1.0)), min_size=1, max_size=6),
    seed=st.integers(0, 1 << 30),
)
def test_both_go_on_the_same(params: list[Sampling], seed: int) -> None:
    """Over twelve steps, in which penalties grow; without `top_p`, whose margin cannot be known ahead.
    Penalties leave the grid: a row may part where the two tokens' penalised logits are equal but for
    rounding, or those of two tokens of which a cut-off keeps one."""
    logits = _logits(len(params), seed)
    host, graph = HOST.tokens(params, logits, 12), GRAPH.tokens(params, logits, 12)
    for row, one in enumerate(params):
        own, other = [step[row] for step in host], [step[row] for step in graph]
        parted = next((step for step in range(12) if own[step] != other[step]), None)
        if parted is not None:
            penalised = logits[row].copy()
            HostCounts.of([1, 2], own[:parted], VOCABULARY).penalise(penalised, one)
            penalised /= np.float32(one.temperature or 1.0)
            apart = abs(penalised[own[parted]] - penalised[other[parted]])
            assert apart < _ROUNDING or _cut_by_rounding(penalised, one)


def test_the_host_s_errors_are_the_row_s(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever raises for one row is that row's failure, and says what it was."""
    rows = [HOST.row(one) for one in (GREEDY, _replace(GREEDY, presence_penalty=1.0), _CUT)]
    (healthy,) = HOST.tokens([row.params for row in rows], _logits(3))

    def penalise(*_: object) -> None:
        raise IndexError("index -1 is out of bounds")

    monkeypatch.setattr(HostCounts, "penalise", penalise)
    chosen = HostChooser(rows)(mx.array(_logits(3)), mx.array([2] * 3))
    chosen.verify()
    assert [row.failure is None for row in rows] == [True, False, True]
    assert "IndexError: index -1 is out of bounds" in str(rows[1].failure)
    tokens = _ids(chosen.tokens)
    assert (tokens[0], tokens[2]) == (healthy[0], healthy[2])


@pytest.mark.parametrize("penalty", [{"presence_penalty": 0.15}, {"frequency_penalty": 0.15}], ids=str)
@pytest.mark.parametrize("on_host", [False, True], ids=["graph", "host"])
def test_a_neighbour_s_bias_changes_no_penalty(penalty: dict[str, float], on_host: bool) -> None:
    """bfloat16 logits of 20.0 (said) and 19.875: a penalty of 0.15 makes the other the best, though bfloat16
    could not tell, and whether a neighbour has a bias (which wants float32) makes no difference."""
    logits = mx.zeros((2, VOCABULARY), mx.bfloat16)
    logits[:, 4] = 20.0
    logits[:, 5] = 19.875
    for neighbour in (GREEDY, _replace(GREEDY, logit_bias=((9, 1.0),)), _CUT):
        rows = [
            RowSampling(params, VOCABULARY, [1], [4], on_host=on_host)
            for params in (_replace(GREEDY, **penalty), neighbour)
        ]
        chosen = RowsSampler(rows)(logits, mx.array([4, 4]))
        assert _ids(chosen.tokens)[0] == 5


def test_rows_bring_the_counts_that_their_chooser_reads() -> None:
    """The graph's lie on the device, the host's do not."""
    punished = _replace(GREEDY, presence_penalty=1.0)
    assert isinstance(GRAPH.row(punished).counts, TokenCounts)
    assert isinstance(HOST.row(punished).counts, HostCounts)


@pytest.mark.parametrize("kind", [GRAPH, HOST], ids=["graph", "host"])
def test_a_row_keeps_no_token_ids(kind: Kind) -> None:
    """`Sequence.tokens` is the only holder: a long prompt must not be in memory twice."""
    prompt, output = array("I", [1, 2]), array("I", [3])
    holders = weakref.ref(prompt), weakref.ref(output)
    row = kind.row(_replace(GREEDY, presence_penalty=1.0), prompt, output=output)
    del prompt, output
    assert [holder() for holder in holders] == [None, None]
    assert not row.has_output
    row.position += 1
    assert row.has_output
