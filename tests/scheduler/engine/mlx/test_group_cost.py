"""What a shared group costs, learned at load: tokens of keys and values, from the times of three steps."""

from __future__ import annotations

from itertools import chain, repeat
from pathlib import Path

import pytest

from scheduler.engine.mlx import loading
from scheduler.engine.mlx.group_cost import (
    LONG_TOKENS,
    ROWS,
    SHORT_TOKENS,
    Times,
    agreed_cost,
    group_cost_tokens,
)
from scheduler.engine.planning.row_sharing import GROUP_COST_TOKENS
from scheduler.shared.row_bytes import RowBytes
from tests.scheduler.engine.mlx.conftest import Tiny
from tests.scheduler.engine.mlx.families import random_model
from tests.scheduler.engine.mlx.loads import load_of

_TOKEN = 1e-6
_BASE = 5e-3


def _times(group_tokens: float) -> Times:
    """A device on which a token costs a microsecond a row, and a group as much as this number of tokens."""
    return Times(
        _BASE + ROWS * SHORT_TOKENS * _TOKEN,
        _BASE + ROWS * LONG_TOKENS * _TOKEN,
        _BASE + LONG_TOKENS * _TOKEN + group_tokens * _TOKEN,
    )


@pytest.mark.parametrize(
    ("first", "second", "agreed"), [(500, 700, 600), (700, 500, 600), (400, 900, None), (64, 8192, None)]
)
def test_two_measurements_must_agree(first: int, second: int, agreed: int | None) -> None:
    """On a busy machine they do not, and the default counts; what is kept would be kept for good."""
    assert agreed_cost((_times(first), _times(second)), LONG_TOKENS) == agreed
    assert agreed_cost((_times(first), Times(_BASE, _BASE, _BASE)), LONG_TOKENS) is None


class _Clock:
    """What the three steps of each round take, in turn."""

    def __init__(self, times: Times) -> None:
        # `begun`, then a start and an end for each step; between rounds one look at the clock.
        self._now = 0.0
        looks = [0.0, *chain.from_iterable((0.0, seconds) for seconds in times)]
        self._looks = chain(looks, *repeat([*looks[1:]], 4), repeat(1.0))

    def __call__(self) -> float:
        self._now += next(self._looks)
        return self._now


@pytest.mark.parametrize("family", ["qwen3", "gpt_oss", "lfm2", "qwen3_next"])
def test_models_with_layers_of_any_kind_are_measured(family: str) -> None:
    """Windows and states beside what is shared; by a scripted clock, in which a group costs 700 tokens."""
    cost = group_cost_tokens(random_model(family), RowBytes(1024), _Clock(_times(700)))
    assert cost == pytest.approx(700, abs=1)


def test_it_is_measured_once_and_decides_what_is_shared(
    tiny: Tiny, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Kept beside the verdict of the check; not measured where that is off."""
    asked: list[int] = []

    def measured(*_: object, packing: object) -> int:
        asked.append(1)
        return 777

    monkeypatch.setattr(loading, "group_cost_tokens", measured)
    folder = str(tmp_path)
    for _ in range(2):
        backend = loading.load(load_of(tiny.folder, cache_folder=folder), lambda stage: None)
        assert backend._rows._group_cost_tokens == 777
    assert asked == [1]
    off = loading.load(load_of(tiny.folder, load_check="off"), lambda stage: None)
    assert off._rows._group_cost_tokens == GROUP_COST_TOKENS
