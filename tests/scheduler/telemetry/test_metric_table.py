"""The documentation of metrics, compared with the instruments."""

from __future__ import annotations

from tests.scheduler.telemetry.metric_table import PAGE, rewrite


def test_the_table_is_true() -> None:
    """`python -m tests.scheduler.telemetry.metric_table` regenerates it."""
    text = PAGE.read_text()
    assert rewrite(text) == text
