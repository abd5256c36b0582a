"""Every expression of panels and rules, and the metrics that each uses."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml

GRAFANA = Path(__file__).parents[2] / "grafana"
RULES = (GRAFANA / "prometheus" / "recording.yml", GRAFANA / "prometheus" / "alerts.yml")
DASHBOARDS = sorted((GRAFANA / "dashboards").glob("*.json"))


def rules() -> list[dict[str, Any]]:
    return [
        rule
        for path in RULES
        for group in yaml.safe_load(path.read_text("utf-8"))["groups"]
        for rule in group["rules"]
    ]


def alerts() -> list[dict[str, Any]]:
    return [rule for rule in rules() if "alert" in rule]


def expressions() -> Iterator[tuple[str, str]]:
    """Yield each with its place, as Grafana sends it with all instances, models and engines."""
    for path in DASHBOARDS:
        board = json.loads(path.read_text("utf-8"))
        for annotation in board["annotations"]["list"]:
            yield f"{path.name}: {annotation['name']}", _filled_in(annotation["expr"])
        for panel in board["panels"]:
            for target in panel["targets"]:
                yield f"{path.name}: {panel['title']}", _filled_in(target["expr"])
    for rule in rules():
        yield str(rule.get("alert") or rule["record"]), _filled_in(rule["expr"])


def _filled_in(promql: str) -> str:
    return re.sub(r"\$(?:instance|model|engine)\b", ".*", promql).replace("$__rate_interval", "1m")


def metrics_in(promql: str) -> set[str]:
    """Return the names of our series, and of recorded ones."""
    return set(re.findall(r"\bpenstock_\w+|\b\w+(?::\w+)+", promql))
