"""A panel: what it shows, and its Grafana SDK builder. In expressions `@` stands for the matchers of the
metric before it: the chosen instances, and the chosen models and engines if it has their labels."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Literal

from grafana_foundation_sdk.builders import common as common_builders
from grafana_foundation_sdk.builders import dashboard as dashboard_builders
from grafana_foundation_sdk.builders import prometheus, stat, timeseries
from grafana_foundation_sdk.models import common
from grafana_foundation_sdk.models import dashboard as models

from scheduler.telemetry.labels import MODEL_FACTS
from scheduler.telemetry.metrics import Metrics

DATASOURCE = models.DataSourceRef(type_val="prometheus", uid="${datasource}")
INSTANCES = 'instance=~"$instance"'
CHOICES = {"model": 'model=~"$model"', "engine": 'engine=~"$engine"'}
RANGE = "$__rate_interval"
BY_MODEL, BY_ENGINE = "instance, model", "instance, model, engine"
MODEL_LEGEND = "{{instance}} {{model}}"
"""Legend of a panel with a curve a model."""
ENGINE_LEGEND = MODEL_LEGEND + " engine {{engine}}"
"""Legend of a panel with a curve an engine."""


@dataclass(frozen=True, slots=True)
class Query:
    """`expression` with `@` for the matchers; `legend` names its series."""

    expression: str
    legend: str

    @property
    def promql(self) -> str:
        return re.sub(r"([\w:]+)\{@", lambda found: f"{found[1]}{{{matchers(found[1])}", self.expression)


def matchers(series: str) -> str:
    """Return the matchers of the dashboards' variables for series of this name."""
    level, colon, _ = series.partition(":")
    labels = level.split("_") if colon else labels_of_series().get(series, ())
    return ",".join((INSTANCES, *(matcher for label, matcher in CHOICES.items() if label in labels)))


@cache
def labels_of_series() -> dict[str, frozenset[str]]:
    """Return the labels of the exported series by name. A recording rule's name begins with its own."""
    metrics = Metrics()
    metrics.of_model("").of_engine("0").describe_model(dict.fromkeys(MODEL_FACTS, ""))
    samples = (one for family in metrics.registry.collect() for one in family.samples)
    return {one.name: frozenset(one.labels) for one in samples}


@dataclass(frozen=True, slots=True)
class Panel:
    """`description` says what a bad value means and where to look next. `width` is in columns of 24."""

    title: str
    description: str
    unit: str
    queries: Sequence[Query]
    kind: Literal["timeseries", "stat"] = "timeseries"
    width: int = 12
    stacked: bool = False
    warn: float | None = None
    bad: float | None = None

    def builder(self) -> timeseries.Panel | stat.Panel:
        panel = self._stat() if self.kind == "stat" else self._timeseries()
        panel.title(self.title).description(self.description).datasource(DATASOURCE)
        panel.height(self.height).span(self.width).unit(self.unit).thresholds(self._thresholds())
        return panel.targets([self._target(index, query) for index, query in enumerate(self.queries)])

    @property
    def height(self) -> int:
        return 4 if self.kind == "stat" else 8

    def _stat(self) -> stat.Panel:
        return (
            stat.Panel()
            .reduce_options(common_builders.ReduceDataOptions().calcs(["lastNotNull"]))
            .color_scheme(dashboard_builders.FieldColor().mode(models.FieldColorModeId.THRESHOLDS))
        )

    def _timeseries(self) -> timeseries.Panel:
        stacking = common.StackingMode.NORMAL if self.stacked else common.StackingMode.NONE
        threshold = common.GraphTresholdsStyleMode
        line = threshold.OFF if self.bad is None else threshold.DASHED
        return (
            timeseries.Panel()
            .min(0)
            .line_width(1)
            .fill_opacity(25 if self.stacked else 8)
            .show_points(common.VisibilityMode.NEVER)
            .span_nulls(False)
            .stacking(common_builders.StackingConfig().mode(stacking).group("A"))
            .thresholds_style(common_builders.GraphThresholdsStyleConfig().mode(line))
            .legend(common_builders.VizLegendOptions().show_legend(True))
            .tooltip(
                common_builders.VizTooltipOptions()
                .mode(common.TooltipDisplayMode.MULTI)
                .sort(common.SortOrder.DESCENDING)
            )
        )

    def _thresholds(self) -> dashboard_builders.ThresholdsConfig:
        colors = (("orange", self.warn), ("red", self.bad))
        steps = [models.Threshold(color="green")]
        steps += [models.Threshold(value, color) for color, value in colors if value is not None]
        return dashboard_builders.ThresholdsConfig().mode(models.ThresholdsMode.ABSOLUTE).steps(steps)

    def _target(self, index: int, query: Query) -> prometheus.Dataquery:
        return (
            prometheus.Dataquery()
            .ref_id(chr(ord("A") + index))
            .datasource(DATASOURCE)
            .expr(query.promql)
            .legend_format(query.legend)
            # Histogram buckets carry request ids as exemplars.
            .exemplar("_bucket" in query.expression and self.kind == "timeseries")
            .range()
        )


def quantiles(histogram: str, *shares: float) -> list[Query]:
    """Return quantiles of a histogram; means hide what agents wait for."""
    return [quantile(histogram, share, f"p{share * 100:g}") for share in shares or (0.5, 0.95, 0.99)]


def quantile(histogram: str, share: float, legend: str, by: str = "") -> Query:
    labels = f"{by}, le" if by else "le"
    return Query(
        f"histogram_quantile({share}, sum by ({labels}) (rate({histogram}_bucket{{@}}[{RANGE}])))", legend
    )


def rate(counter: str, legend: str, by: str = "") -> Query:
    grouped = f"sum by ({by}) " if by else "sum "
    return Query(f"{grouped}(rate({counter}{{@}}[{RANGE}]))", legend)


def total(gauge: str, legend: str, by: str = "") -> Query:
    return Query((f"sum by ({by}) " if by else "sum ") + f"({gauge}{{@}})", legend)


def most(gauge: str, legend: str, by: str = "instance") -> Query:
    return Query(f"max by ({by}) ({gauge}{{@}})", legend)


def each(gauge: str, legend: str = "") -> Query:
    """Return one curve an engine."""
    return most(gauge, f"{legend} {ENGINE_LEGEND}".strip(), by=BY_ENGINE)


def share(part: str, whole: str, legend: str) -> Query:
    return Query(f"sum (rate({part}{{@}}[{RANGE}])) / sum (rate({whole}{{@}}[{RANGE}]))", legend)


def stacked(
    title: str, description: str, unit: str, ask: Callable[[str, str, str], Query], metric: str, *, by: str
) -> Panel:
    """Return a metric's parts by one label, on top of each other; `ask` is `rate` or `total`."""
    return Panel(title, description, unit, [ask(metric, f"{{{{{by}}}}}", by)], stacked=True)


def figure(
    title: str, description: str, unit: str, query: Query, warn: float | None = None, bad: float | None = None
) -> Panel:
    """Return one number, small enough for six in a row."""
    return Panel(title, description, unit, [query], kind="stat", width=4, warn=warn, bad=bad)
