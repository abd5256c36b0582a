"""A dashboard: panels from left to right, with the variables that all of ours share."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from grafana.panel import DATASOURCE, Panel

_COLUMNS = 24


@dataclass(frozen=True, slots=True)
class Dashboard:
    name: str
    title: str
    description: str
    panels: Sequence[Panel]

    def json(self) -> dict[str, Any]:
        return {
            "uid": f"penstock-{self.name}",
            "title": f"Penstock / {self.title}",
            "description": self.description,
            "tags": ["penstock"],
            "schemaVersion": 39,
            "version": 1,
            "editable": True,
            "graphTooltip": 1,
            "refresh": "10s",
            "time": {"from": "now-30m", "to": "now"},
            "timezone": "",
            "links": [
                {
                    "title": "Penstock",
                    "type": "dashboards",
                    "tags": ["penstock"],
                    "asDropdown": False,
                    "includeVars": True,
                    "keepTime": True,
                }
            ],
            "templating": {"list": _variables()},
            "annotations": {"list": [_deaths()]},
            "panels": self._placed(),
        }

    def _placed(self) -> list[dict[str, Any]]:
        placed: list[dict[str, Any]] = []
        x = y = row = 0
        for identity, panel in enumerate(self.panels, start=1):
            if x + panel.width > _COLUMNS:
                x, y, row = 0, y + row, 0
            placed.append(panel.json(identity, x, y))
            x, row = x + panel.width, max(row, panel.height)
        return placed


def _variables() -> list[dict[str, Any]]:
    return [
        {"name": "datasource", "label": "Prometheus", "type": "datasource", "query": "prometheus"},
        _choice("model", "Model", "label_values(penstock_model_info, model)"),
        _choice("instance", "Instance", 'label_values(penstock_model_info{model=~"$model"}, instance)'),
    ]


def _choice(name: str, label: str, query: str) -> dict[str, Any]:
    return {
        "name": name,
        "label": label,
        "type": "query",
        "datasource": DATASOURCE,
        "definition": query,
        "query": {"query": query, "refId": name},
        "refresh": 2,
        "includeAll": True,
        "multi": True,
        "allValue": ".*",
        "current": {"selected": True, "text": ["All"], "value": ["$__all"]},
    }


def _deaths() -> dict[str, Any]:
    """A line in every panel where an engine ended: it explains most other steps."""
    return {
        "name": "Engine deaths",
        "datasource": DATASOURCE,
        "enable": True,
        "expr": 'changes(penstock_engine_deaths_total{instance=~"$instance"}[1m]) > 0',
        "iconColor": "red",
        "titleFormat": "engine died",
        "step": "10s",
    }
