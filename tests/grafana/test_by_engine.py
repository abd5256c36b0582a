"""What panels and rules show of two servers, one of which has two engines, according to promtool."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import yaml

from scheduler.telemetry.labels import CONDITIONS, RESTART_CAUSES
from tests.grafana.exported import registry
from tests.grafana.expressions import DASHBOARDS, RULES, filled_in
from tests.grafana.programs import program

WEIGHTS = {("mac-1", "0"): 1, ("mac-1", "1"): 2, ("mac-2", "0"): 4}
"""What a gauge of an engine shows, and what its counters grow by in a second."""
SERVICES = {"mac-1": 3, "mac-2": 4}
"""The same of what is no engine's."""
SAME = ("penstock_prefix_hit_tokens_total",)
"""Grow by 1 in a second at every engine, so that shares of it differ."""
EVERY_SECONDS, SAMPLES = 15, 80
AT = "15m"


def fixture() -> Iterator[dict[str, str]]:
    """Return all series of both servers, as promtool writes them."""
    for instance in SERVICES:
        engines = [engine for server, engine in WEIGHTS if server == instance]
        for family in registry(*engines).collect():
            for one in family.samples:
                labels = {**one.labels, "instance": instance, "job": "penstock"}
                weight = WEIGHTS.get((instance, one.labels.get("engine", "")), SERVICES[instance])
                growth = EVERY_SECONDS * (1 if one.name in SAME else weight)
                inside = ",".join(f'{name}="{value}"' for name, value in labels.items())
                values = f"{weight}x{SAMPLES}" if family.type == "gauge" else f"0+{growth}x{SAMPLES}"
                yield {"series": f"{one.name}{{{inside}}}", "values": values}


@dataclass(frozen=True, slots=True)
class Shown:
    """A query of a panel."""

    board: str
    title: str
    legend: str
    promql: str


def shown() -> Iterator[Shown]:
    for path in DASHBOARDS:
        for panel in json.loads(path.read_text("utf-8"))["panels"]:
            for target in panel["targets"]:
                yield Shown(path.stem, panel["title"], target["legendFormat"], target["expr"])


def evaluates(expected: list[tuple[str, dict[str, float]]], folder: Path) -> str:
    """Return promtool's complaints about these expressions, with the values by labels that they must have."""
    tests = [
        {
            "expr": f"round({promql}, 0.001)",
            "eval_time": AT,
            "exp_samples": [{"labels": labels, "value": value} for labels, value in values.items()],
        }
        for promql, values in expected
    ]
    case = {
        "interval": f"{EVERY_SECONDS}s",
        "input_series": list(fixture()),
        "promql_expr_test": tests,
    }
    document = {
        "rule_files": [str(path) for path in RULES],
        "evaluation_interval": f"{EVERY_SECONDS}s",
        "tests": [case],
    }
    path = folder / "case.yml"
    path.write_text(yaml.safe_dump(document), "utf-8")
    done = subprocess.run(
        [program("promtool"), "test", "rules", str(path)],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    return "" if done.returncode == 0 else done.stdout + done.stderr


def curves(legend: str) -> int:
    """Return how many engines and instances the curves of this legend stand for."""
    return len(WEIGHTS) if "{{engine}}" in legend else len(SERVICES) if "{{instance}}" in legend else 1


def test_each_panel_has_a_curve_an_engine_where_its_legend_says_so(tmp_path: Path) -> None:
    """And one for all where it does not: nobody can distinguish two curves of one name."""
    expected = [
        (f"count(count by (instance, engine) ({filled_in(one.promql)}))", {"{}": float(curves(one.legend))})
        for one in shown()
    ]
    assert evaluates(expected, tmp_path) == ""


def of(instance: str, engine: str) -> str:
    return f'{{instance="{instance}",engine="{engine}"}}'


@dataclass(frozen=True, slots=True)
class Figure:
    """What a panel's curves show with all engines, and with engine 1 alone chosen."""

    board: str
    title: str
    legend: str
    all: dict[str, float]
    one: dict[str, float]


def by(label: str, value: float) -> dict[str, float]:
    values = {"condition": CONDITIONS, "cause": RESTART_CAUSES}[label]
    return {f'{{{label}="{one}"}}': value for one in values}


EACH = "{{instance}} engine {{engine}}"
SECOND = of("mac-1", "1")
FIGURES = (
    Figure("overview", "Engines up", "up", {"{}": 7}, {"{}": 2}),
    Figure("overview", "Waiting", "waiting", {"{}": 7}, {"{}": 7}),
    Figure("overview", "Stalled", "stalled", {"{}": 4}, {"{}": 2}),
    Figure("overview", "Prefix cache hits", "hits", {"{}": 0.429}, {"{}": 0.5}),
    Figure("overview", "Tokens per second", "generated", {"{}": 7}, {"{}": 2}),
    Figure("overview", "Slots", "running", {"{}": 7}, {"{}": 2}),
    Figure(
        "cache",
        "Hit share by engine",
        EACH,
        {of("mac-1", "0"): 1, SECOND: 0.5, of("mac-2", "0"): 0.25},
        {SECOND: 0.5},
    ),
    Figure("cache", "Bytes held", "running rows", {"{}": 7}, {"{}": 2}),
    Figure(
        "engine",
        "Tokens generated by engine",
        EACH,
        {of(*name): weight for name, weight in WEIGHTS.items()},
        {SECOND: 2},
    ),
    Figure("engine", "Engines by condition", "{{condition}}", by("condition", 7), by("condition", 7)),
    Figure("engine", "Restarts by cause", "{{cause}}", by("cause", 7), by("cause", 2)),
    Figure("engine", "Memory by use", "weights", {"{}": 7}, {"{}": 2}),
    Figure("engine", "Session moves", "moves", {"{}": 7}, {"{}": 7}),
)


def test_totals_are_sums_and_a_chosen_engine_is_alone(tmp_path: Path) -> None:
    """Shares are sums over sums. What is no engine's stays when an engine is chosen."""
    queries = {(one.board, one.title, one.legend): one.promql for one in shown()}
    expected: list[tuple[str, dict[str, float]]] = []
    for figure in FIGURES:
        query = queries[figure.board, figure.title, figure.legend]
        expected.append((filled_in(query), figure.all))
        expected.append((filled_in(query.replace("$engine", "1")), figure.one))
    assert evaluates(expected, tmp_path) == ""
