"""What every test may use."""

from __future__ import annotations

import pytest
import trio.testing

# These assert outside test modules too; without this their failures would show no values.
pytest.register_assert_rewrite("tests.contracts", "tests.mlx", "tests.scheduler")


@pytest.fixture
def autojump_clock() -> trio.testing.MockClock:
    """Time that jumps to the next deadline whenever every task waits: no test sleeps."""
    return trio.testing.MockClock(autojump_threshold=0)
