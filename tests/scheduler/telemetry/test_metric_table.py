"""The documentation of metrics, compared with the instruments."""

from __future__ import annotations

from tests.scheduler.telemetry.metric_table import PAGE, rewrite, table


def test_the_table_is_true() -> None:
    """`python -m tests.scheduler.telemetry.metric_table` regenerates it."""
    text = PAGE.read_text()
    assert rewrite(text) == text


def test_each_group_has_metrics_and_each_metric_a_help_text() -> None:
    """Otherwise the comparison would hold an empty table."""
    server, model, engine = table().split("| **")[1:]
    for group, least in ((server, 5), (model, 20), (engine, 20)):
        rows = group.splitlines()[1:]
        assert len(rows) >= least
        assert all(row.removesuffix(" |").rsplit("| ", 1)[1].strip() for row in rows)
