"""What panels and rules show of two servers, according to promtool: one has two engines, one two models."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from scheduler.telemetry.labels import CONDITIONS, RESTART_CAUSES
from tests.grafana.exported import registry_of
from tests.grafana.expressions import DASHBOARDS, RULES, filled_in
from tests.grafana.programs import judged_rules

ENGINES = {
    ("mac-1", "tiny", "0"): 1,
    ("mac-1", "tiny", "1"): 2,
    ("mac-2", "tiny", "0"): 4,
    ("mac-2", "large", "0"): 8,
}
"""What a gauge of an engine shows, and what its counters grow by in a second."""
MODELS = {("mac-1", "tiny"): 3, ("mac-2", "tiny"): 4, ("mac-2", "large"): 16}
"""The same of what is no engine's, but a model's."""
SERVERS = {"mac-1": 5, "mac-2": 6}
"""The same of what is no model's."""
WEIGHTS = {
    **{":".join(name): weight for name, weight in ENGINES.items()},
    **{":".join(name): weight for name, weight in MODELS.items()},
    **SERVERS,
}
SAME = ("penstock_prefix_hit_tokens_total",)
"""Grow by 1 in a second at every engine, so that shares of it differ."""
EVERY_SECONDS, SAMPLES = 15, 80
AT = "15m"


def fixture() -> Iterator[dict[str, str]]:
    """Return all series of both servers, as promtool writes them."""
    for instance in SERVERS:
        engines: defaultdict[str, list[str]] = defaultdict(list)
        for server, model, engine in ENGINES:
            if server == instance:
                engines[model].append(engine)
        for family in registry_of(engines).collect():
            for one in family.samples:
                labels = {**one.labels, "instance": instance, "job": "penstock"}
                whose = [one.labels[label] for label in ("model", "engine") if label in one.labels]
                weight = WEIGHTS[":".join((instance, *whose))]
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
    done = judged_rules(document, folder)
    return "" if done.returncode == 0 else done.stdout + done.stderr


def curves(legend: str) -> int:
    """Return how many engines, models and instances the curves of this legend stand for."""
    if "{{instance}}" not in legend:
        return len({model for _, model in MODELS}) if "{{model}}" in legend else 1
    numbers = {"{{engine}}": len(ENGINES), "{{model}}": len(MODELS)}
    return next((number for label, number in numbers.items() if label in legend), len(SERVERS))


def test_each_panel_has_a_curve_an_engine_or_a_model_where_its_legend_says_so(tmp_path: Path) -> None:
    """And one for all where it does not: nobody can distinguish two curves of one name."""
    expected = [
        (
            f"count(count by (instance, model, engine) ({filled_in(one.promql)}))",
            {"{}": float(curves(one.legend))},
        )
        for one in shown()
    ]
    assert evaluates(expected, tmp_path) == ""


def of(instance: str, model: str, engine: str = "") -> str:
    return f'{{instance="{instance}",model="{model}"' + (f',engine="{engine}"}}' if engine else "}")


@dataclass(frozen=True, slots=True)
class Figure:
    """What a panel's curves show with everything, with engine 1 chosen, and with the large model chosen."""

    board: str
    title: str
    legend: str
    all: dict[str, float]
    one: dict[str, float]
    large: dict[str, float]


def by(label: str, value: float) -> dict[str, float]:
    values = {"condition": CONDITIONS, "cause": RESTART_CAUSES, "status": ["200"]}[label]
    return {f'{{{label}="{one}"}}': value for one in values}


def totals(everything: float, one: float, large: float) -> list[dict[str, float]]:
    return [{"{}": everything}, {"{}": one}, {"{}": large}]


EACH_MODEL = "{{instance}} {{model}}"
EACH = EACH_MODEL + " engine {{engine}}"
SECOND, LARGE = of("mac-1", "tiny", "1"), of("mac-2", "large", "0")
FIGURES = (
    Figure("overview", "Engines up", "up", *totals(15, 2, 8)),
    Figure("overview", "Waiting", "waiting", *totals(23, 23, 16)),
    Figure("overview", "Stalled", "stalled", *totals(8, 2, 8)),
    Figure("overview", "Prefix cache hits", "hits", *totals(0.267, 0.5, 0.125)),
    Figure("overview", "Tokens per second", "generated", *totals(15, 2, 8)),
    Figure("overview", "Slots", "running", *totals(15, 2, 8)),
    Figure(
        "overview",
        "Tokens generated by model",
        "{{model}}",
        {'{model="tiny"}': 7, '{model="large"}': 8},
        {'{model="tiny"}': 2},
        {'{model="large"}': 8},
    ),
    Figure("overview", "HTTP answers by status", "{{status}}", *[by("status", 11)] * 3),
    Figure(
        "cache",
        "Hit share by engine",
        EACH,
        {of("mac-1", "tiny", "0"): 1, SECOND: 0.5, of("mac-2", "tiny", "0"): 0.25, LARGE: 0.125},
        {SECOND: 0.5},
        {LARGE: 0.125},
    ),
    Figure("cache", "Bytes held", "running rows", *totals(15, 2, 8)),
    Figure(
        "engine",
        "Tokens generated by engine",
        EACH,
        {of(*name): weight for name, weight in ENGINES.items()},
        {SECOND: 2},
        {LARGE: 8},
    ),
    Figure(
        "engine",
        "Memory by model",
        EACH_MODEL,
        {of("mac-1", "tiny"): 9, of("mac-2", "tiny"): 12, of("mac-2", "large"): 24},
        {of("mac-1", "tiny"): 6},
        {of("mac-2", "large"): 24},
    ),
    Figure(
        "engine",
        "Engines by condition",
        "{{condition}}",
        by("condition", 23),
        by("condition", 23),
        by("condition", 16),
    ),
    Figure("engine", "Restarts by cause", "{{cause}}", by("cause", 15), by("cause", 2), by("cause", 8)),
    Figure("engine", "Memory by use", "weights", *totals(15, 2, 8)),
    Figure("engine", "Session moves", "moves", *totals(23, 23, 16)),
)


def test_totals_are_sums_and_what_is_chosen_is_alone(tmp_path: Path) -> None:
    """Shares are sums over sums. What is no engine's stays when an engine is chosen, and what is no model's
    when a model is."""
    queries = {(one.board, one.title, one.legend): one.promql for one in shown()}
    expected: list[tuple[str, dict[str, float]]] = []
    for figure in FIGURES:
        query = queries[figure.board, figure.title, figure.legend]
        expected.append((filled_in(query), figure.all))
        expected.append((filled_in(query.replace("$engine", "1")), figure.one))
        expected.append((filled_in(query.replace("$model", "large")), figure.large))
    assert evaluates(expected, tmp_path) == ""
