"""Two ranks on a ring give the tokens and log-probabilities of one process: joining, behind a prefix that is
new and one that is known. A sample; `make zoo` plays all scenes on all modules that split."""

from __future__ import annotations

import pytest

from tests.examples import sampled
from tests.scheduler.engine.mlx.sharding import split_zoo
from tests.scheduler.engine.mlx.sharding.ranks import Ranks
from tests.scheduler.engine.mlx.sharding.split_zoo import candidates, wide
from tests.scheduler.engine.mlx.zoo.census import build, module_of
from tests.scheduler.engine.mlx.zoo.faults import FALLBACKS

SAMPLE = {
    "qwen3": "tensor",  # keys and values of every token, shared in place
    "gpt_oss": "tensor",  # sliding windows, experts, sinks by head
    "deepseek_v3": "tensor",  # a latent form of keys and values, whole on each rank
    "qwen3_next": "pipeline",  # recurrent states beside attention, some layers on each rank
}
"""One of each kind of cache, and of each way to split."""
_LOGITS = 1e-4
"""The bound is a fraction of the largest logit: the effect of another order of summation, in float32."""


@pytest.mark.timeout(300)
@pytest.mark.parametrize("name", sampled(SAMPLE, ("qwen3_next",)))
def test_two_ranks_have_the_same_tokens_as_one_process(two_ranks: Ranks, name: str) -> None:
    scenes = ("joins", "cold", "warm")
    first, second = two_ranks.play(split_zoo.__name__, name, ",".join(scenes))
    assert first == second, "ranks are not equal bit for bit"
    assert first["way"] == SAMPLE[name]
    assert first["scenes"] == dict.fromkeys(scenes, "right")
    assert first["logits"] <= _LOGITS
    assert tuple(first["fallbacks"]) == FALLBACKS.get(name, ((), ""))[0]
    whole, part = first["bytes"]
    held = [sum((each["token_bytes"], each["state_bytes"])) for each in (whole, part)]
    assert held[1] == held[0] // (1 if name == "deepseek_v3" else 2)


def test_the_modules_that_split_are_known() -> None:
    """A release of mlx-lm that splits fewer of them is noticed. Those that split are all built with sizes
    that two ranks divide."""
    names = candidates()
    found = {module_of(name) for name in names}
    assert len(found) >= 29
    with wide():
        for name in names:
            build(name)
