"""A prefill chunk that would keep the device for too long is evaluated in slices of layers: same tokens."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import cache
from typing import Any

import mlx.core as mx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from scheduler.engine.mlx.device import X86, forced
from scheduler.engine.mlx.upstream.layer_slices import layers_at_once, slices
from scheduler.engine.planning.pace import PrefillPace
from tests.examples import sampled
from tests.scheduler.engine.mlx.families import random_model
from tests.scheduler.engine.mlx.reuse import ReuseEngine, words

SLICED = ("qwen3", "gemma3_text", "deepseek_v3", "qwen3_next", "mamba2")
"""Attention, windows beside it, MLA with experts, recurrent layers beside it, only those, and a model that
runs one row a call."""
SECONDS = 2.0
_PREFIX = words(30, 1)


@pytest.fixture(params=[1, 2], ids=["each layer", "two layers"])
def at_once(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[int]:
    """A device that evaluates this many of four layers at a time: each step is predicted to take too long."""
    bound = SECONDS * request.param / 4
    monkeypatch.setattr(PrefillPace, "step_seconds", lambda *_: SECONDS)
    with forced(replace(X86, evaluation_seconds=bound)):
        yield request.param


@pytest.mark.parametrize("family", sampled(SLICED, ("qwen3", "qwen3_next", "mamba2")))
def test_tokens_are_those_of_the_model_alone(
    family: str, at_once: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rows of different lengths in a batch, rows behind a prefix in place, and a second turn."""
    evaluated = count_evaluations(monkeypatch)
    engine = ReuseEngine(model_of(family), family)
    for prefix, lengths in (([], (1, 9, 17, 33)), (_PREFIX, (3, 11, 20)), (_PREFIX, (4, 12))):
        engine.ask(*(engine.submit(prefix + words(length, length), max_tokens=4) for length in lengths))
    assert evaluated, "nothing was sliced"


def test_a_failure_leaves_the_model_as_it_was() -> None:
    model = model_of("qwen3")
    kind = type(model.layers[0])
    before = kind.__call__
    with pytest.raises(TypeError), slices(model, None, SECONDS):
        model("not", "an", "array", "and", "too many")
    assert kind.__call__ is before


@settings(deadline=None)
@given(st.integers(1, 200), st.floats(0.001, 1000), st.floats(0.01, 100))
def test_a_slice_takes_no_longer_than_the_bound(layers: int, predicted: float, most: float) -> None:
    """Unless one layer does; and there are no more slices than need be, up to rounding."""
    found = layers_at_once(layers, predicted, most)
    if found is None:
        assert predicted <= most
        return
    layer = predicted / layers
    assert found == 1 or found * layer <= most * (1 + 1e-9)
    assert (found + 1) * layer > most * (1 - 1e-9)


@cache
def model_of(family: str) -> Any:
    """One for all tests: the oracle knows a model by its identity."""
    return random_model(family)


def count_evaluations(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Return a list that has an entry for each evaluation of one array, as slices make them."""
    found: list[int] = []
    evaluate = mx.eval

    def counting(*trees: object) -> None:
        if len(trees) == 1 and isinstance(trees[0], mx.array):
            found.append(1)
        evaluate(*trees)

    monkeypatch.setattr(mx, "eval", counting)
    return found
