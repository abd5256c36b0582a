"""How long a load may take."""

from __future__ import annotations

import pytest

from scheduler.link.load_deadline import load_limit_seconds


@pytest.mark.parametrize(("slowest", "limit"), [(None, 600.0), (2.0, 60.0), (20.0, 200.0), (90.0, 600.0)])
def test_a_load_has_ten_times_what_the_slowest_took(slowest: float | None, limit: float) -> None:
    """At least a minute, at most `--ready-seconds`, and that where none has loaded yet."""
    assert load_limit_seconds(slowest, 600.0) == limit
