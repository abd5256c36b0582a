"""How long a load may take."""

from __future__ import annotations

import pytest

from scheduler.recovery.deadlines import load_limit_seconds


@pytest.mark.parametrize(("slowest", "limit"), [(None, 600.0), (2.0, 300.0), (20.0, 400.0), (90.0, 600.0)])
def test_a_load_has_twenty_times_what_the_slowest_took(slowest: float | None, limit: float) -> None:
    """At least five minutes, at most `--ready-seconds`, and that where none has loaded yet."""
    assert load_limit_seconds(slowest, 600.0) == limit
