"""Cut-offs: the tokens that an order of the whole vocabulary gives, and what they cost in MLX's graph.

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
Logits = npt.NDArray[np.float32]


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


def _flat(generator: np.random.Generator) -> Logits:
    return generator.normal(0, 2, _VOCABULARY).astype(np.float32)


def _peaked(generator: np.random.Generator) -> Logits:
    """All that counts stands in a few neighbouring places."""
    logits = generator.normal(-12, 2, _VOCABULARY)
    start = generator.integers(0, _VOCABULARY - 90)
    logits[start : start + 90] = generator.normal(3, 2, 90)
    return logits.astype(np.float32)


def _last(generator: np.random.Generator) -> Logits:
    """The largest stand behind the last whole block."""
    logits = generator.normal(0, 1, _VOCABULARY)
    logits[-7:] += 9
    return logits.astype(np.float32)


def _equal(generator: np.random.Generator) -> Logits:
    return generator.integers(0, 4, _VOCABULARY).astype(np.float32)


def _forbidden(generator: np.random.Generator) -> Logits:
    """As a grammar leaves them."""
    logits = np.full(_VOCABULARY, -np.inf, np.float32)
    logits[generator.choice(_VOCABULARY, 9, replace=False)] = generator.normal(0, 1, 9)
    return logits


def _led(generator: np.random.Generator) -> Logits:
    """One stands far above all others, which have most of the mass together."""
    logits = generator.normal(0, 0.2, _VOCABULARY)
    logits[generator.integers(_VOCABULARY)] = 8.6
    return logits.astype(np.float32)


_MAKES = [_flat, _peaked, _last, _equal, _forbidden, _led]
_WAYS: list[dict[str, Any]] = [
    {"top_k": 1},
    {"top_k": 20, "top_p": 0.95},
    {"top_k": 64},
    {"top_k": 64, "top_p": 0.999, "min_p": 0.01},
    {"top_k": 65},
    {"top_k": 400, "top_p": 0.9},
    {"top_p": 0.8},
    {"top_p": 0.01},
    {"min_p": 0.05},
]


@pytest.mark.parametrize("make", _MAKES)
def test_numpy_keeps_what_an_order_of_all_keeps(make: Callable[[np.random.Generator], Logits]) -> None:
    generator = np.random.default_rng(5)
    for way in [*_WAYS, {"top_p": 0.3}, {"top_p": 0.97}, {"top_p": 0.9, "min_p": 0.3}]:
        for _ in range(4):
            logits: Logits = (np.round(make(generator) * 64) / 64).astype(np.float32)
            params = _params(**way)
            floor = host_floor(logits, logits.max(), params)
            assert ((logits >= floor) == _kept(logits, params)).all(), params


@pytest.mark.parametrize("make", _MAKES)
def test_what_is_kept_is_what_an_order_of_all_keeps(
    make: Callable[[np.random.Generator], Logits],
) -> None:
    """Rows with few tokens, with many, with any number and without cut-offs, side by side in any order."""
    generator, chance = np.random.default_rng(4), random.Random(4)
    ways = list(_WAYS)
    for _ in range(12):
        chance.shuffle(ways)
        rows = [_params(**way) for way in ways[: chance.randint(1, len(ways))]]
        logits = np.stack([np.round(make(generator) * 64) / 64 for _ in rows])
        with forced(METAL):
            floor = Cuts(rows, _VOCABULARY).floor(mx.array(logits))
            found = np.array(mx.array(logits) >= floor)
        for row, params in enumerate(rows):
            assert (found[row] == _kept(logits[row], params)).all(), params


_VIEWS = {"Reshape", "Slice", "Broadcast", "ExpandDims", "Squeeze", "Flatten", "Unflatten"}


def _cost(vocabulary: int, *rows: Sampling) -> tuple[float, int]:
    """What computing thresholds moves, in the bytes of the rows' logits, and how many operations it is, views
    apart."""
    seen: list[dict[str, Any]] = []
    logits = mx.zeros((len(rows), vocabulary))
    with forced(METAL):
        mx.export_function(seen.append, Cuts(rows, vocabulary).floor, logits)
    sizes: dict[str, int] = {}

    def size(array: tuple[str, tuple[int, ...], mx.Dtype]) -> int:
        name, shape, dtype = array
        return sizes.get(name, int(np.prod(shape)) * dtype.size)

    moved = steps = 0
    for step in seen:
        if step["type"] != "primitive":
            continue
        read, written = step["inputs"], step["outputs"]
        if step["name"] in _VIEWS:
            sizes[written[0][0]] = min(size(written[0]), size(read[0]))
            continue
        if step["name"].startswith("Gather"):
            read = [*read[1:], *written]  # It reads what it takes.
        moved += sum(size(array) for array in (*read, *written))
        steps += 1
    return moved / logits.nbytes, steps


@pytest.mark.parametrize(
    ("cuts", "passes", "operations"),
    [
        ({"top_k": 20}, 1.5, 12),
        ({"top_k": 20, "top_p": 0.95}, 2.5, 25),
        ({"top_k": 64, "top_p": 0.95, "min_p": 0.05}, 2.5, 25),
        ({"min_p": 0.05}, 1.1, 2),
        # Any number of tokens may be kept: 25 bisections.
        ({"top_p": 0.95}, 120.0, 220),
    ],
)
def test_few_tokens_are_found_in_few_passes(cuts: dict[str, Any], passes: float, operations: int) -> None:
    """Where 150,000 logits a row do not fit into a cache, bytes are the time, and each operation a launch."""
    moved, launched = _cost(151_936, *[_params(**cuts)] * 8)
    assert moved <= passes, moved
    assert launched <= operations, launched
