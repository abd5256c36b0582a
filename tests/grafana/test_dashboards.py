"""Dashboards stay consistent when a metric is renamed."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from tests.grafana.exported import registry
from tests.grafana.expressions import DASHBOARDS, alerts, expressions, filled_in, metrics_in, recorded, rules

PROMETHEUS_OWN = {"up"}


def exported() -> dict[str, set[str]]:
    """Return series names by metric, from a real registry."""
    return {family.name: {sample.name for sample in family.samples} for family in registry("0").collect()}


def test_what_is_read_of_an_expression() -> None:
    """Selectors only: neither labels, nor functions, nor keywords."""
    promql = (
        'histogram_quantile(0.9, sum by (le, x) (rate(a_bucket{le="10.0",b=~"c|d"}[5m])))'
        " / on (instance) group_left (model) (max(e) > 0) or 0 * instance:f:ratio unless g"
    )
    assert metrics_in(promql) == {"a_bucket", "e", "instance:f:ratio", "g"}
    with pytest.raises(ValueError, match="not read"):
        metrics_in("a ; b")


def test_every_metric_that_is_asked_for_exists() -> None:
    """On `/metrics`, or by a recording rule."""
    series = {name for names in exported().values() for name in names} | recorded() | PROMETHEUS_OWN
    asked = {one.where: metrics_in(filled_in(one.promql)) for one in expressions()}
    assert {where: names - series for where, names in asked.items() if names - series} == {}


def test_recorded_series_are_asked_for() -> None:
    asked = {name for one in expressions() for name in metrics_in(filled_in(one.promql))}
    assert recorded() <= asked


@pytest.mark.parametrize("path", DASHBOARDS, ids=lambda path: str(path.stem))
def test_panels_have_a_unit_a_description_and_a_place(path: Path) -> None:
    """A figure without a unit is ambiguous; two panels in one place hide each other."""
    board = json.loads(path.read_text("utf-8"))
    assert [variable["name"] for variable in board["templating"]["list"]] == [
        "datasource",
        "model",
        "instance",
        "engine",
    ]
    taken: set[tuple[int, int]] = set()
    for panel in board["panels"]:
        assert panel["fieldConfig"]["defaults"]["unit"]
        assert len(panel["description"]) > 20, panel["title"]
        place = panel["gridPos"]
        cells = {(place["x"] + x, place["y"] + y) for x in range(place["w"]) for y in range(place["h"])}
        assert not cells & taken
        assert place["x"] + place["w"] <= 24
        taken |= cells
        for target in panel["targets"]:
            assert 'instance=~"$instance"' in target["expr"]
    assert len({panel["title"] for panel in board["panels"]}) == len(board["panels"])


@pytest.mark.parametrize("label", ["model", "engine"])
def test_what_is_chosen_is_asked_for_where_there_is_one(label: str) -> None:
    """A matcher on a label that a series lacks empties its panel; a missing one shows all of them."""
    samples = [one for family in registry("0").collect() for one in family.samples]
    labelled = {one.name for one in samples if label in one.labels}
    labelled |= {name for name in recorded() if label in name.partition(":")[0].split("_")}
    selectors = re.compile(r"([\w:]+)\{([^}]*)\}")
    found = [
        (one.where, series, matchers)
        for one in expressions()
        if "$instance" in one.promql
        for series, matchers in selectors.findall(one.promql)
    ]
    assert len(found) > 100
    wrong = [one for one in found if (one[1] in labelled) != (f'{label}=~"${label}"' in one[2])]
    assert wrong == []


def test_alerts_have_a_runbook_and_a_severity() -> None:
    """An alert says what to do."""
    for alert in alerts():
        assert alert["labels"]["severity"] in ("page", "warn")
        assert "$labels.instance" in alert["annotations"]["summary"]
        assert ("$labels.model" in alert["annotations"]["summary"]) == (alert["alert"] != "PenstockDown")
        assert len(alert["annotations"]["description"]) > 100
    names = [rule.get("alert") or rule["record"] for rule in rules()]
    assert len(set(names)) == len(names)
