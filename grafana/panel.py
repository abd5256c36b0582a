"""One panel, and how Grafana wants it written. In expressions `@` stands for the instance matcher."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

DATASOURCE = {"type": "prometheus", "uid": "${datasource}"}
MATCHER = 'instance=~"$instance"'
RANGE = "$__rate_interval"


@dataclass(frozen=True, slots=True)
class Query:
    """`expression` with `@` for the instance, and what its lines are called."""

    expression: str
    legend: str

    @property
    def promql(self) -> str:
        return self.expression.replace("@", MATCHER)


@dataclass(frozen=True, slots=True)
class Panel:
    """`description` says what a bad value means and where to look next."""

    title: str
    description: str
    unit: str
    queries: Sequence[Query]
    kind: Literal["timeseries", "stat"] = "timeseries"
    width: int = 12
    stacked: bool = False
    warn: float | None = None
    bad: float | None = None

    def json(self, identity: int, x: int, y: int) -> dict[str, Any]:
        return {
            "id": identity,
            "title": self.title,
            "description": self.description,
            "type": self.kind,
            "datasource": DATASOURCE,
            "gridPos": {"h": self.height, "w": self.width, "x": x, "y": y},
            "targets": [self._target(index, query) for index, query in enumerate(self.queries)],
            "fieldConfig": {"defaults": self._defaults(), "overrides": []},
            "options": self._options(),
        }

    @property
    def height(self) -> int:
        return 4 if self.kind == "stat" else 8

    def _target(self, index: int, query: Query) -> dict[str, Any]:
        return {
            "refId": chr(ord("A") + index),
            "datasource": DATASOURCE,
            "expr": query.promql,
            "legendFormat": query.legend,
            # A histogram's buckets bring request ids with them.
            "exemplar": "_bucket" in query.expression and self.kind == "timeseries",
            "range": True,
        }

    def _defaults(self) -> dict[str, Any]:
        steps: list[dict[str, Any]] = [{"color": "green", "value": None}]
        steps += [{"color": "orange", "value": self.warn}] if self.warn is not None else []
        steps += [{"color": "red", "value": self.bad}] if self.bad is not None else []
        defaults: dict[str, Any] = {"unit": self.unit, "thresholds": {"mode": "absolute", "steps": steps}}
        if self.kind == "timeseries":
            defaults["min"] = 0
            defaults["custom"] = {
                "lineWidth": 1,
                "fillOpacity": 25 if self.stacked else 8,
                "showPoints": "never",
                "spanNulls": False,
                "stacking": {"mode": "normal" if self.stacked else "none", "group": "A"},
                "thresholdsStyle": {"mode": "off" if self.bad is None else "dashed"},
            }
        else:
            defaults["color"] = {"mode": "thresholds"}
        return defaults

    def _options(self) -> dict[str, Any]:
        if self.kind == "stat":
            return {
                "reduceOptions": {"calcs": ["lastNotNull"], "fields": "", "values": False},
                "colorMode": "value",
                "graphMode": "area",
                "textMode": "auto",
            }
        return {
            "legend": {"displayMode": "list", "placement": "bottom", "showLegend": True},
            "tooltip": {"mode": "multi", "sort": "desc"},
        }


def quantiles(histogram: str, *shares: float) -> list[Query]:
    """Lines of a histogram; averages hide what agents wait for."""
    return [
        Query(
            f"histogram_quantile({share}, sum by (le) (rate({histogram}_bucket{{@}}[{RANGE}])))",
            f"p{share * 100:g}",
        )
        for share in shares or (0.5, 0.95, 0.99)
    ]


def rate(counter: str, legend: str, by: str = "") -> Query:
    grouped = f"sum by ({by}) " if by else "sum "
    return Query(f"{grouped}(rate({counter}{{@}}[{RANGE}]))", legend)


def total(gauge: str, legend: str, by: str = "") -> Query:
    return Query((f"sum by ({by}) " if by else "sum ") + f"({gauge}{{@}})", legend)


def most(gauge: str, legend: str, by: str = "instance") -> Query:
    return Query(f"max by ({by}) ({gauge}{{@}})", legend)


def share(part: str, whole: str, legend: str) -> Query:
    return Query(f"sum (rate({part}{{@}}[{RANGE}])) / sum (rate({whole}{{@}}[{RANGE}]))", legend)


def stacked(
    title: str, description: str, unit: str, ask: Callable[[str, str, str], Query], metric: str, *, by: str
) -> Panel:
    """A metric's parts by one label, on top of each other; `ask` is `rate` or `total`."""
    return Panel(title, description, unit, [ask(metric, f"{{{{{by}}}}}", by)], stacked=True)


def figure(
    title: str, description: str, unit: str, query: Query, warn: float | None = None, bad: float | None = None
) -> Panel:
    """One number, small enough for six in a row."""
    return Panel(title, description, unit, [query], kind="stat", width=4, warn=warn, bad=bad)
