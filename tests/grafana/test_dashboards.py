"""Dashboards and rules ask for metrics that exist, in PromQL; alerts say what to do."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.grafana.exported import registry
from tests.grafana.expressions import DASHBOARDS, alerts, expressions, metrics_in, rules
from tests.grafana.programs import judged_rules


def test_every_metric_that_is_asked_for_exists() -> None:
    """On `/metrics`, or by a recording rule."""
    series = {sample.name for family in registry("0").collect() for sample in family.samples}
    series |= {rule["record"] for rule in rules() if "record" in rule}
    asked = {where: metrics_in(promql) for where, promql in expressions()}
    assert {where: names - series for where, names in asked.items() if names - series} == {}


def test_each_expression_is_promql(tmp_path: Path) -> None:
    """According to promtool, which names what it cannot read."""
    tests = [{"expr": promql, "eval_time": "1m"} for _, promql in expressions()]
    done = judged_rules({"tests": [{"interval": "1m", "promql_expr_test": tests}]}, tmp_path)
    assert "error" not in done.stdout + done.stderr, done.stdout + done.stderr


@pytest.mark.parametrize("path", DASHBOARDS, ids=lambda path: str(path.stem))
def test_panels_have_a_unit_a_description_and_a_place(path: Path) -> None:
    """A figure without a unit is ambiguous; two panels in one place hide each other."""
    taken: set[tuple[int, int]] = set()
    for panel in json.loads(path.read_text("utf-8"))["panels"]:
        assert panel["fieldConfig"]["defaults"]["unit"]
        assert len(panel["description"]) > 20, panel["title"]
        place = panel["gridPos"]
        cells = {(place["x"] + x, place["y"] + y) for x in range(place["w"]) for y in range(place["h"])}
        assert not cells & taken
        taken |= cells
        for target in panel["targets"]:
            assert 'instance=~"$instance"' in target["expr"]


def test_alerts_have_a_runbook_and_a_severity() -> None:
    """An alert says what to do."""
    for alert in alerts():
        assert alert["labels"]["severity"] in ("page", "warn")
        assert "$labels.instance" in alert["annotations"]["summary"]
        assert ("$labels.model" in alert["annotations"]["summary"]) == (alert["alert"] != "PenstockDown")
        assert len(alert["annotations"]["description"]) > 100
