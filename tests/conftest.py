"""Fixtures and settings for all tests."""

from __future__ import annotations

import hypothesis
import pytest
import trio.testing

# These assert outside test modules too; without this their failures would show no values.
pytest.register_assert_rewrite("tests.contracts", "tests.scheduler.engine.mlx", "tests.scheduler")

# An example that a busy machine delays is not a failure.
hypothesis.settings.register_profile(
    "any machine", deadline=None, suppress_health_check=[hypothesis.HealthCheck.too_slow]
)
hypothesis.settings.load_profile("any machine")


@pytest.fixture
def autojump_clock() -> trio.testing.MockClock:
    """Time that jumps to the next deadline whenever every task waits: no test sleeps."""
    return trio.testing.MockClock(autojump_threshold=0)
