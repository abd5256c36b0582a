"""The table in `scheduler/telemetry/METRICS.md`, generated from the instruments:
`python -m tests.scheduler.telemetry.metric_table`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from prometheus_client import Metric
from prometheus_client.metrics import MetricWrapperBase

from scheduler.telemetry.engine_metrics import EngineFigures
from scheduler.telemetry.instruments import ENGINE, MODEL
from tests.api.field_table import replace_table
from tests.grafana.exported import registry

PAGE = Path(__file__).parents[3] / "scheduler" / "telemetry" / "METRICS.md"
START = "| metric | |\n"
_GROUPS = ("Server", "Model", "Engine")


def table() -> str:
    rows = [START.rstrip(), "|---|---|"]
    families = list(_families())
    for group in _GROUPS:
        rows.append(f"| **{group}** | |")
        rows += [_row(labels, metric) for labels, metric in families if _group(labels) == group]
    return "\n".join(rows)


def _families() -> Iterator[tuple[Sequence[str], Metric]]:
    """Yield each family with its labels, which one without a sample yet has, too: an instrument itself, what
    is declared beside a field in its description."""
    for collector in registry("0")._collector_to_names:
        assert isinstance(collector, MetricWrapperBase | EngineFigures)
        for metric in collector.describe():
            owner: Any = collector if isinstance(collector, MetricWrapperBase) else metric
            yield owner._labelnames, metric


def _group(labels: Sequence[str]) -> str:
    return "Engine" if ENGINE in labels else "Model" if MODEL in labels else "Server"


def _row(labels: Sequence[str], metric: Metric) -> str:
    name = metric.name + ("_total" if metric.type == "counter" else "")
    own = ",".join(label for label in labels if label not in (MODEL, ENGINE))
    return f"| `{name}{own and f'{{{own}}}'}` | {metric.documentation} |"


def rewrite(text: str) -> str:
    return replace_table(text, START, table())


if __name__ == "__main__":
    PAGE.write_text(rewrite(PAGE.read_text()))
