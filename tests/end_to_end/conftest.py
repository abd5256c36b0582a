"""One server of each kind for the tests that leave it unchanged."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.end_to_end.serving import Served, serving


@pytest.fixture(scope="session")
def random_weights() -> Iterator[Served]:
    """Random weights on real MLX, with every option at its default."""
    with serving() as served:
        yield served


@pytest.fixture(scope="session")
def embedded() -> Iterator[Served]:
    """The embedded model, with meaningful answers: `penstock serve` without an option."""
    with serving(trained=True) as served:
        yield served


@pytest.fixture(scope="session")
def scripted() -> Iterator[Served]:
    """The scripted engine: 8 slots, 2 ms a step."""
    with serving("--engine", "scripted", "--scripted", "step_seconds=0.002", "--max-slots", "8") as served:
        yield served
