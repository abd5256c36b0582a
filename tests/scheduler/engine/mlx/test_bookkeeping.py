"""Unevaluated graphs do not grow from step to step: each node of such a chain holds a buffer of the
device."""

from __future__ import annotations

import io

import mlx.core as mx
import pytest

from scheduler.engine.mlx import batch
from scheduler.engine.mlx.kv.cache_layout import leaves
from tests.examples import sampled
from tests.scheduler.engine.mlx.reuse import ReuseEngine, engine_of, words

_STEPS = 80
_CUT_STEPS = 16
"""Links are cut this often here, and four times as seldom in an engine."""
_MOST_EDGES_A_LAYER = _CUT_STEPS * 6
"""A step adds two to six edges to a layer's."""


def _edges(engine: ReuseEngine) -> int:
    """The most that hang on one array of the running batch's caches, once the model call that is built ahead
    is computed."""
    most, rows = 0, engine.batch._generation_batch
    if rows._undrawn is not None:
        mx.eval(rows._undrawn[0])
    for layer in leaves(rows.prompt_cache):
        for value in vars(layer).values():
            if isinstance(value, mx.array):
                graph = io.StringIO()
                mx.export_to_dot(graph, value)
                most = max(most, graph.getvalue().count("->"))
    return most


@pytest.mark.parametrize(
    "family", sampled(["qwen3_next", "granitemoehybrid", "falcon_h1", "gpt_oss"], ["falcon_h1", "gpt_oss"])
)
def test_no_graph_grows_with_the_steps(family: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Over 80 steps in which rows join, cold and behind a kept prefix, and leave. Cold prompts of one
    length give recurrent layers the `left_padding` that each step takes 1 from."""
    monkeypatch.setattr(batch, "_EVALUATED_STEPS", _CUT_STEPS)
    engine = engine_of(family)
    prompt = words(17, 1)
    engine.iterate(
        [engine.submit(prompt, max_tokens=_STEPS + 50), engine.submit(words(17, 2), max_tokens=_STEPS)]
    )
    most = 0
    for step in range(_STEPS):
        joins = [engine.submit(prompt + words(3, step), max_tokens=10)] if step % 25 == 10 else []
        engine.iterate(joins)
        if step % 4 == 0:
            most = max(most, _edges(engine))
    assert engine.batch.decoding >= 1
    assert most <= _MOST_EDGES_A_LAYER
