"""16-bit and quantised weights: the same tokens in a batch as alone, but where rounding decides. A sample;
`make zoo` checks all kinds in all weights."""

from __future__ import annotations

import mlx.core as mx
import pytest
from mlx_lm.models.cache import make_prompt_cache

from tests.examples import sampled
from tests.scheduler.engine.mlx.zoo.census import build
from tests.scheduler.engine.mlx.zoo.company import Kind
from tests.scheduler.engine.mlx.zoo.faults import FALLBACKS
from tests.scheduler.engine.mlx.zoo.weights import REFUSED, base_of

SAMPLE = ["qwen3@affine4", "gemma3_text@bfloat16", "qwen3_5@mxfp4"]
"""`make test-all` has the one without quantised weights, and plants faults in those."""


@pytest.mark.timeout(300)
@pytest.mark.parametrize("name", sampled(SAMPLE, ["gemma3_text@bfloat16"]))
def test_a_batch_is_within_rounding_of_the_model_alone(name: str) -> None:
    """Tolerance: the rule of `rounding.py`, in any company."""
    kind = Kind(name, small=name == SAMPLE[1])
    kind.meet(6, 0)
    assert kind.batching.fallbacks == FALLBACKS.get(base_of(name), ((), ""))[0]


def test_what_is_refused_cannot_be_computed() -> None:
    """A later MLX that computes one of these fails here, and the entry must go."""
    for name in REFUSED:
        model, _ = build(name)
        with pytest.raises(RuntimeError, match="only supports float32"):
            mx.eval(model(mx.array([[1, 2, 3]]), cache=make_prompt_cache(model)))
