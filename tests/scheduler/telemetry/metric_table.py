"""The table in `scheduler/telemetry/METRICS.md`, generated from the instruments:
`python -m tests.scheduler.telemetry.metric_table`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from prometheus_client import Metric
from prometheus_client.metrics import MetricWrapperBase

from scheduler.telemetry.instruments import ENGINE, MODEL
from tests.api.field_table import replace_table
from tests.grafana.exported import registry

PAGE = Path(__file__).parents[3] / "scheduler" / "telemetry" / "METRICS.md"
START = "| metric | type | labels | |\n"
_GROUPS = ("Server", "Model", "Engine")


def table() -> str:
    rows = [START.rstrip(), "|---|---|---|---|"]
    families = [(_labels(family), metric) for family in _families() for metric in family.describe()]
    for group in _GROUPS:
        rows.append(f"| **{group}** | | | |")
        rows += [_row(labels, metric) for labels, metric in families if _group(labels) == group]
    return "\n".join(rows)


def _families() -> Iterator[MetricWrapperBase]:
    """Yield the instruments themselves, not their samples: one without a sample yet has labels, too."""
    for family in registry("0")._collector_to_names:
        assert isinstance(family, MetricWrapperBase)
        yield family


def _labels(family: MetricWrapperBase) -> tuple[str, ...]:
    return tuple(family._labelnames)


def _group(labels: Sequence[str]) -> str:
    return "Engine" if ENGINE in labels else "Model" if MODEL in labels else "Server"


def _row(labels: Sequence[str], metric: Metric) -> str:
    name = metric.name + ("_total" if metric.type == "counter" else "")
    own = ", ".join(f"`{label}`" for label in labels if label not in (MODEL, ENGINE))
    return f"| `{name}` | {metric.type} | {own} | {metric.documentation} |"


def rewrite(text: str) -> str:
    return replace_table(text, START, table())


if __name__ == "__main__":
    PAGE.write_text(rewrite(PAGE.read_text()))
