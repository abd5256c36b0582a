"""Cut-offs of a large vocabulary: the tokens that an order of all of it gives.

Logits lie on a grid of 1/64: a bisection divides to 1e-6.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import mlx.core as mx
import msgspec
import numpy as np
import numpy.typing as npt
import pytest

from scheduler.engine.mlx.device import METAL, forced
from scheduler.engine.mlx.sampling.draw import Cuts
from scheduler.engine.mlx.sampling.host_chooser import floor as host_floor
from scheduler.shared.messages import Sampling
from tests.contracts.journal import GREEDY

_VOCABULARY = 32 * 160 + 7
Logits = npt.NDArray[np.floating[Any]]


def _params(**cuts: Any) -> Sampling:
    changed: Sampling = msgspec.structs.replace(GREEDY, temperature=1.0, **cuts)
    return changed


def _kept(logits: Logits, params: Sampling) -> npt.NDArray[np.bool_]:
    """By a sort of all, in float64."""
    order = np.sort(logits.astype(np.float64))[::-1]
    weights = np.exp(order - order[0])
    count = len(order)
    if 0.0 < params.top_p < 1.0:
        before = np.cumsum(weights) - weights
        count = int((before < params.top_p * weights.sum()).sum())
    if 0 < params.top_k < len(order):
        count = min(count, params.top_k)
    floor = order[count - 1]
    if params.min_p > 0.0:
        floor = max(floor, order[0] + np.log(params.min_p))
    kept: npt.NDArray[np.bool_] = logits >= floor
    return kept


def _peaked(chance: np.random.Generator) -> Logits:
    """All that counts stands in a few neighbouring places."""
    logits, start = chance.normal(-12, 2, _VOCABULARY), chance.integers(0, _VOCABULARY - 90)
    logits[start : start + 90] = chance.normal(3, 2, 90)
    return logits


def _forbidden(chance: np.random.Generator) -> Logits:
    """As a grammar leaves them."""
    logits = np.full(_VOCABULARY, -np.inf)
    logits[chance.choice(_VOCABULARY, 9, replace=False)] = chance.normal(0, 1, 9)
    return logits


def _led(chance: np.random.Generator) -> Logits:
    """One stands far above all others, which have most of the mass together."""
    logits = chance.normal(0, 0.2, _VOCABULARY)
    logits[chance.integers(_VOCABULARY)] = 8.6
    return logits


_LAST = 9.0 * (np.arange(_VOCABULARY) >= _VOCABULARY - 7)
"""Lifts those behind the last whole block."""
_MAKES: dict[str, Callable[[np.random.Generator], Logits]] = {
    "flat": lambda chance: chance.normal(0, 2, _VOCABULARY),
    "peaked": _peaked,
    "last": lambda chance: chance.normal(0, 1, _VOCABULARY) + _LAST,
    "equal": lambda chance: chance.integers(0, 4, _VOCABULARY).astype(np.float64),
    "forbidden": _forbidden,
    "led": _led,
}
_WAYS: list[dict[str, Any]] = [
    {"top_k": 1},
    {"top_k": 20, "top_p": 0.95},
    {"top_k": 64},
    {"top_k": 64, "top_p": 0.999, "min_p": 0.01},
    {"top_k": 65},
    {"top_k": 400, "top_p": 0.9},
    {"top_p": 0.8},
    {"top_p": 0.97},
    {"top_p": 0.9, "min_p": 0.3},
    {"top_p": 0.01},
    {"min_p": 0.05},
]


@pytest.mark.parametrize("make", _MAKES)
def test_what_is_kept_is_what_an_order_of_all_keeps(make: str) -> None:
    """In MLX's graph and by NumPy: rows with few tokens, with many, with any number and without cut-offs, in
    any order."""
    generator, chance = np.random.default_rng(4), random.Random(4)
    ways = list(_WAYS)
    for _ in range(12):
        chance.shuffle(ways)
        rows = [_params(**way) for way in ways[: chance.randint(1, len(ways))]]
        logits = np.stack([np.round(_MAKES[make](generator) * 64) / 64 for _ in rows]).astype(np.float32)
        with forced(METAL):
            floor = Cuts(rows, _VOCABULARY).floor(mx.array(logits))
            found = np.array(mx.array(logits) >= floor)
        for row, params in enumerate(rows):
            kept = _kept(logits[row], params)
            assert (found[row] == kept).all(), params
            assert ((logits[row] >= host_floor(logits[row], logits[row].max(), params)) == kept).all(), params
