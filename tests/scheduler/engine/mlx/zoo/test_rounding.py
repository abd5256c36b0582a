"""16-bit and quantised weights: the same tokens in a batch as alone, but where rounding decides. A sample;
`make zoo` checks all kinds in all weights."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import mlx.core as mx
import pytest
from mlx_lm.models.cache import create_causal_mask, make_prompt_cache

from scheduler.engine.mlx.kv.batch_rows import BatchRows
from tests.examples import sampled
from tests.scheduler.engine.mlx.reuse import checked
from tests.scheduler.engine.mlx.zoo.census import SMALL, build
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


def _padding_seen(rows: Any, tokens: int, return_array: bool = False, **kwargs: Any) -> mx.array:
    """Every padded row sees the last column of its padding."""
    left_padding = mx.maximum(rows._geometry.left_padding - 1, 0)
    mask: mx.array = create_causal_mask(tokens, offset=rows._private.end, left_padding=left_padding, **kwargs)
    return mask


def _shifted(offsets: Callable[[Any], mx.array]) -> property:
    """The last of several rows is one position further."""

    def further(rows: Any) -> mx.array:
        found = offsets(rows)
        return found + (mx.arange(found.size) == found.size - 1) if found.size > 1 else found

    return property(further)


@pytest.mark.parametrize("name", sampled(["qwen3@bfloat16", "qwen3@affine4"], ["qwen3@affine4"]))
@pytest.mark.parametrize("fault", ["padding", "position"])
def test_a_planted_fault_is_found(name: str, fault: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """One more token attended to, or one position: by the rule in a batch, and by the check at load."""
    kind = Kind(name, small=True)
    assert kind.verdict(6, 0).outcome == "right"
    if fault == "padding":
        monkeypatch.setattr(BatchRows, "make_mask", _padding_seen)
    else:
        monkeypatch.setattr(BatchRows, "offset", _shifted(BatchRows.offset.fget))  # type: ignore[attr-defined]
    assert kind.verdict(6, 0).outcome.startswith("wrong")
    assert checked(*build(name, **SMALL)).fallbacks == ("one_row",)


def test_what_is_refused_cannot_be_computed() -> None:
    """A later MLX that computes one of these fails here, and the entry must go."""
    for name in REFUSED:
        model, _ = build(name)
        with pytest.raises(RuntimeError, match="only supports float32"):
            mx.eval(model(mx.array([[1, 2, 3]]), cache=make_prompt_cache(model)))
