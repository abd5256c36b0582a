"""The gate of the feed-forward layers, as exact as float32 is, and in mlx-lm's models."""

from __future__ import annotations

from collections.abc import Callable

import mlx.core as mx
import numpy as np
import numpy.typing as npt
import pytest
from mlx_lm.models import activations, llama

from scheduler.engine.device import Traits
from scheduler.engine.mlx.cpu import swiglu
from scheduler.engine.mlx.device import METAL, X86, forced
from scheduler.engine.mlx.upstream import gate


def _exact(gate: mx.array, x: mx.array) -> npt.NDArray[np.float64]:
    wide, others = (np.array(array.astype(mx.float32)).astype(np.float64) for array in (gate, x))
    with np.errstate(over="ignore"):
        exact: npt.NDArray[np.float64] = wide / (1 + np.exp(-wide)) * others
    return exact


@pytest.mark.parametrize("rows", [3, 400], ids=["in the graph", "on the host"])
def test_few_numbers_and_many_are_the_exact_ones(rows: int) -> None:
    """Large ones too, of either sign: nothing overflows, and what is left of a closed gate is nothing."""
    gate = mx.concatenate([mx.random.normal((rows, 250)) * 5, mx.full((rows, 2), 1e4)], axis=1)
    gate = mx.concatenate([gate, -gate], axis=1)
    x = mx.random.normal(gate.shape)
    exact = _exact(gate, x)
    found = np.array(swiglu.swiglu(gate, x))
    assert found.dtype == np.float32
    assert np.max(np.abs(found - exact) / np.maximum(np.abs(exact), 1e-6)) < 2e-6


@pytest.mark.parametrize("dtype", [mx.float16, mx.bfloat16], ids=str)
def test_sixteen_bits_stay_sixteen(dtype: mx.Dtype) -> None:
    """As mlx-lm's own, within their resolution."""
    gate, x = (mx.random.normal((40, 50)).astype(dtype) for _ in range(2))
    found = swiglu.swiglu(gate, x)
    assert found.dtype == dtype
    assert np.allclose(np.array(found.astype(mx.float32)), _exact(gate, x), rtol=0.02, atol=1e-3)


@pytest.mark.parametrize("rows", [3, 400])
def test_the_inputs_stay_as_they_were(rows: int) -> None:
    """They may be slices of what a model goes on with."""
    both = mx.random.normal((rows, 1000))
    before = np.array(both)
    mx.eval(swiglu.swiglu(both[:, :500], both[:, 500:]))
    assert np.array_equal(np.array(both), before)


@pytest.mark.parametrize("device", [X86, METAL], ids=["x86", "other"])
def test_models_call_it_where_the_exponential_is_slow(
    device: Traits, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And mlx-lm's own elsewhere."""
    called: list[str] = []

    def by(name: str) -> Callable[[mx.array, mx.array], None]:
        return lambda gate, x: called.append(name)

    monkeypatch.setattr(gate, "swiglu", by("ours"))
    monkeypatch.setattr(gate, "_ordinary", by("mlx-lm's"))
    with forced(device):
        for module in (activations, llama):
            module.swiglu(mx.zeros((1, 4)), mx.zeros((1, 4)))
    assert called == ["ours" if device.exp_is_slow else "mlx-lm's"] * 2
