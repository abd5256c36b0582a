"""Engine processes; none outlives its test."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.scheduler.link.real_engine import RealEngine


@pytest.fixture
def make_engine(tmp_path: Path) -> Iterator[Callable[..., RealEngine]]:
    made: list[RealEngine] = []

    def make(on_start: str = "", stop_seconds: float = 10.0) -> RealEngine:
        made.append(RealEngine(tmp_path, on_start, stop_seconds))
        return made[-1]

    yield make
    for engine in made:
        engine.rescue()


@pytest.fixture
def engine(make_engine: Callable[..., RealEngine]) -> RealEngine:
    return make_engine()
