"""Engine processes; none outlives its test."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.scheduler.processes.real_engine import RealEngine


@pytest.fixture(params=[False, True], ids=["socket pair", "TCP"])
def make_engine(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Callable[..., RealEngine]]:
    """By both launchers: what holds for a child process holds for one that dials from elsewhere."""
    yield from _making(tmp_path, over_tcp=request.param)


@pytest.fixture
def make_child(tmp_path: Path) -> Iterator[Callable[..., RealEngine]]:
    """By the launcher of child processes only."""
    yield from _making(tmp_path, over_tcp=False)


def _making(folder: Path, *, over_tcp: bool) -> Iterator[Callable[..., RealEngine]]:
    made: list[RealEngine] = []

    def make(on_start: str = "", stop_seconds: float = 10.0) -> RealEngine:
        made.append(RealEngine(folder, on_start, stop_seconds, over_tcp=over_tcp))
        return made[-1]

    yield make
    for engine in made:
        engine.rescue()


@pytest.fixture
def engine(make_engine: Callable[..., RealEngine]) -> RealEngine:
    return make_engine()


@pytest.fixture
def child(make_child: Callable[..., RealEngine]) -> RealEngine:
    return make_child()
