"""The whole engine with the branches of Metal and CUDA: rows that share, join and leave, a step ahead."""

from __future__ import annotations

import functools
import random
from typing import Any

import mlx.core as mx
import pytest

from scheduler.shared.messages import Submit
from tests.examples import sampled
from tests.scheduler.engine.mlx.families import random_model
from tests.scheduler.engine.mlx.reuse import ReuseEngine, model_of, words
from tests.scheduler.engine.mlx.sixteen_bit.conftest import SIXTEEN_BIT

_ROUNDING = {mx.bfloat16: 2.0**-8, mx.float16: 2.0**-11}
"""Between a number and the next one, as a part of it."""
_LAYERS_ROUNDING = 12
"""How much of that four layers in another order of summing make of the largest logit, at most: 6.5 were
measured, and the tenth best token is 40 to 700 below the best."""


@functools.cache
def _model(family: str, name: str) -> Any:
    """Kept: answers of one request alone are remembered by the model's identity."""
    model = random_model(family)
    model.set_dtype(SIXTEEN_BIT[name])
    return model


def _run(model: Any, family: str, seed: int) -> tuple[ReuseEngine, list[Submit]]:
    """12 prompts, most behind one of two nested prefixes, that come within 24 steps: hits, rows in place."""
    generator = random.Random(seed)
    shared_prefix = words(26, seed)
    prefixes = [shared_prefix, shared_prefix + words(15, seed + 1), shared_prefix[:20], []]
    engine = ReuseEngine(model, family)
    submits: list[Submit] = []
    for turn in range(24):
        if turn % 2 == 0:
            prompt = generator.choice(prefixes) + [
                generator.randrange(300) for _ in range(generator.randrange(1, 12))
            ]
            submits.append(engine.submit(prompt, max_tokens=generator.randrange(4, 18), boundaries=(26, 41)))
            engine.iterate(submits[-1:])
        else:
            engine.iterate()
    engine.finish()
    return engine, submits


@pytest.mark.parametrize("family", ["qwen3", "gpt_oss"])
def test_in_float32_the_gpu_s_branches_give_the_same_tokens(family: str) -> None:
    """Equality, as in the other folder: MLX's own attention beside ours, draws in the graph, steps ahead."""
    engine, submits = _run(model_of(family), family, 1)
    for submit in submits:
        engine.check(submit)


@pytest.mark.parametrize("name", sorted(SIXTEEN_BIT))
@pytest.mark.parametrize("family", sampled(["qwen3", "gemma3_text", "lfm2"], ["qwen3"]))
def test_a_row_leaves_its_own_course_only_where_rounding_decides(family: str, name: str) -> None:
    """Tolerance: a batch's products have other shapes than one row's, and in 16 bits their rounding decides
    between tokens with logits this close. Up to the first token that differs it is an equality; there the
    logit of the generated token is within rounding of the best one's. Families without experts, whose
    products MLX's CPU build has in float32 only."""
    dtype, model = SIXTEEN_BIT[name], _model(family, name)
    engine, submits = _run(model, family, 2)
    equal = 0
    for submit in submits:
        said, alone = engine.heard[submit.request_id].tokens, engine.alone(submit)
        assert len(said) == len(alone)
        if said == alone:
            equal += 1
            continue
        at = next(place for place, pair in enumerate(zip(said, alone, strict=True)) if pair[0] != pair[1])
        logits = model(mx.array([[*submit.prompt, *alone[:at]]]))[0, -1].astype(mx.float32)
        gap = float(mx.max(logits) - logits[said[at]])
        tolerance = _LAYERS_ROUNDING * _ROUNDING[dtype] * float(mx.max(mx.abs(logits)))
        assert gap <= tolerance, (submit.request_id, at, gap, tolerance)
    assert equal >= len(submits) // 3, f"{equal} of {len(submits)}"


@pytest.mark.parametrize("name", sorted(SIXTEEN_BIT))
def test_what_is_computed_stays_16_bit(name: str) -> None:
    """Equality: attention computes in float32 and hands back what it was given, or a model would go on in
    float32 with twice the keys and values."""
    engine = ReuseEngine(_model("qwen3", name), "qwen3")
    prefix = words(30, 5)
    engine.iterate([engine.submit([*prefix, 1, 2], max_tokens=4)])
    engine.finish()
    engine.iterate([engine.submit([*prefix, 3, at], max_tokens=20) for at in range(2)])
    for _ in range(8):
        engine.iterate()
    layers = engine.batch._generation_batch.prompt_cache
    assert any(layer.groups for layer in layers), "nothing was shared in place"
    assert all(array.dtype == SIXTEEN_BIT[name] for layer in layers for array in layer.state)
    engine.finish()
