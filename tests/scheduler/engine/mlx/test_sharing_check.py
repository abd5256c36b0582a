"""The check at load of sharing in place: it tells a wrong mask from a model's own rounding, in any dtype."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import cache
from itertools import product
from typing import Any

import mlx.core as mx
import pytest
from mlx import nn

from scheduler.engine.mlx import shared_attention
from scheduler.engine.mlx.device import METAL, X86, forced
from scheduler.engine.mlx.sharing_check import shares_in_place
from tests.examples import sampled
from tests.scheduler.engine.mlx.families import random_model

_DTYPES = ["float32", "bfloat16", "float16", "4 bits"]
_FAMILIES = ["qwen3", "llama", "gemma3_text", "lfm2"]
_DEVICES = {"gpu": METAL, "x86": X86}
_CASES = list(product(_FAMILIES, _DTYPES, _DEVICES))
_SAMPLE = [
    (family, dtype, ("gpu", "x86")[(row + column) % 2])
    for row, family in enumerate(_FAMILIES)
    for column, dtype in enumerate(_DTYPES)
]


@cache
def _model(family: str, dtype: str) -> Any:
    model = random_model(family)
    if dtype == "4 bits":
        model.set_dtype(mx.bfloat16)
        nn.quantize(model, group_size=32, bits=4)  # type: ignore[attr-defined]  # mlx.nn has no types
    else:
        model.set_dtype(getattr(mx, dtype))
    return model


@pytest.mark.parametrize("case", sampled(_CASES, _SAMPLE), ids="-".join)
def test_rounding_is_no_fault_and_one_token_too_few_is(
    case: tuple[str, str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A tolerance of 5 % of the largest logit refused llama in 4 bits, whose rounding is 7 to 10 %."""
    family, dtype, device = case
    model = _model(family, dtype)
    attention = shared_attention._attention

    def shortened(queries: Any, keys: Any, values: Any, groups: Sequence[Any], *others: Any) -> Any:
        shorter = [
            replace(group, keys=group.keys[:, :, :-1], values=group.values[:, :, :-1]) for group in groups
        ]
        return attention(queries, keys, values, shorter, *others)

    with forced(_DEVICES[device]):
        assert shares_in_place(model)
        monkeypatch.setattr(shared_attention, "_attention", shortened)
        assert not shares_in_place(model)


@pytest.mark.parametrize("family", sampled(["gpt_oss", "qwen3_next"], ["gpt_oss"]))
def test_experts_that_rounding_chooses_are_no_fault(family: str) -> None:
    """Such a token's logits are others as a whole; the tokens around it are as before."""
    with forced(METAL):
        assert shares_in_place(_model(family, "4 bits"))


@pytest.mark.parametrize("dtype", _DTYPES)
def test_a_row_that_attends_to_a_run_that_is_not_its_own_is_found(
    dtype: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One row of three: the run that it does not share must weigh nothing."""
    model = _model("qwen3", dtype)
    with forced(METAL):
        monkeypatch.setattr(shared_attention, "_MASKED", -1.0)
        assert not shares_in_place(model)
