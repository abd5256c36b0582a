"""Two ranks for all tests of this folder, which start with the first of them that needs any."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.scheduler.engine.mlx.sharding.ranks import Ranks


@pytest.fixture(scope="session")
def two_ranks() -> Iterator[Ranks]:
    ranks = Ranks()
    try:
        yield ranks
    finally:
        ranks.close()
