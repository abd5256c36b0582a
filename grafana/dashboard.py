"""A dashboard: panels from left to right, with the variables, link and annotation that all of ours share."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from grafana_foundation_sdk.builders import dashboard as builders
from grafana_foundation_sdk.cog.builder import Builder
from grafana_foundation_sdk.cog.encoder import JSONEncoder
from grafana_foundation_sdk.models import dashboard as models

from grafana.panel import DATASOURCE, Panel, matchers

# The labels are those of a series that a model has before it is first loaded.
_MODELS = "label_values(penstock_engine_up, model)"
_INSTANCES = 'label_values(penstock_engine_up{model=~"$model"}, instance)'
_ENGINES = 'label_values(penstock_engine_up{instance=~"$instance",model=~"$model"}, engine)'
_DEATHS = "penstock_engine_deaths_total"


@dataclass(frozen=True, slots=True)
class Dashboard:
    name: str
    title: str
    description: str
    panels: Sequence[Panel]

    def json(self) -> str:
        """Return the JSON that Grafana imports. Each row of panels must fill Grafana's 24 columns, but the
        last."""
        return JSONEncoder(indent=1).encode(self._builder().build()) + "\n"

    def _builder(self) -> builders.Dashboard:
        board = (
            builders.Dashboard(f"Penstock / {self.title}")
            .uid(f"penstock-{self.name}")
            .description(self.description)
            .tags(["penstock"])
            .version(1)
            .editable()
            .tooltip(models.DashboardCursorSync.CROSSHAIR)
            .refresh("10s")
            .time("now-30m", "now")
            .timezone("")
            .link(
                builders.DashboardLink("Penstock")
                .type(models.DashboardLinkType.DASHBOARDS)
                .tags(["penstock"])
                .include_vars(True)
                .keep_time(True)
            )
            .with_variable(builders.DatasourceVariable("datasource").label("Prometheus").type("prometheus"))
            .with_variable(_choice("model", "Model", _MODELS))
            .with_variable(_choice("instance", "Instance", _INSTANCES))
            .with_variable(_choice("engine", "Engine", _ENGINES))
            .annotation(_EngineDeaths())
        )
        for identity, panel in enumerate(self.panels, start=1):
            board.with_panel(panel.builder().id(identity))
        return board


def _choice(name: str, label: str, query: str) -> builders.QueryVariable:
    return (
        builders.QueryVariable(name)
        .label(label)
        .datasource(DATASOURCE)
        .query({"query": query, "refId": name})
        .refresh(models.VariableRefresh.ON_TIME_RANGE_CHANGED)
        .include_all(True)
        .multi(True)
        .all_value(".*")
        .current(models.VariableOption(selected=True, text=["All"], value=["$__all"]))
    )


class _EngineDeaths(models.AnnotationQuery, Builder[models.AnnotationQuery]):
    """A line in every panel where an engine died: it explains most other steps."""

    def __init__(self) -> None:
        super().__init__(
            name="Engine deaths",
            datasource=DATASOURCE,
            icon_color="red",
            expr=f"changes({_DEATHS}{{{matchers(_DEATHS)}}}[1m]) > 0",
        )

    def build(self) -> models.AnnotationQuery:
        return self

    def to_json(self) -> dict[str, Any]:
        # Fields of Prometheus annotations that the SDK's type lacks.
        return {**super().to_json(), "titleFormat": "{{model}}: engine {{engine}} died", "step": "10s"}
