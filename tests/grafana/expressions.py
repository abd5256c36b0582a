"""Every expression of panels and rules, and the metrics that each uses."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

GRAFANA = Path(__file__).parents[2] / "grafana"
RULES = (GRAFANA / "prometheus" / "recording.yml", GRAFANA / "prometheus" / "alerts.yml")
DASHBOARDS = sorted((GRAFANA / "dashboards").glob("*.json"))

_WORDS = {
    "by",
    "without",
    "on",
    "ignoring",
    "group_left",
    "group_right",
    "and",
    "or",
    "unless",
    "bool",
    "offset",
}
_TOKEN = re.compile(
    r"""(?P<text>"(?:[^"\\]|\\.)*")|(?P<duration>\[[^\]]*\])|(?P<name>[a-zA-Z_:][a-zA-Z0-9_:]*)"""
    r"""|(?P<number>[0-9.]+(?:e[+-]?[0-9]+)?)|(?P<mark>[(){},=~!<>+\-*/%^])|(?P<space>\s+)"""
)


@dataclass(frozen=True, slots=True)
class Expression:
    """`where` is its place, for failures."""

    where: str
    promql: str
    alert: bool = False


def rules() -> list[dict[str, Any]]:
    return [
        rule
        for path in RULES
        for group in yaml.safe_load(path.read_text("utf-8"))["groups"]
        for rule in group["rules"]
    ]


def alerts() -> list[dict[str, Any]]:
    return [rule for rule in rules() if "alert" in rule]


def recorded() -> set[str]:
    return {rule["record"] for rule in rules() if "record" in rule}


def expressions() -> Iterator[Expression]:
    for path in DASHBOARDS:
        board = json.loads(path.read_text("utf-8"))
        for annotation in board["annotations"]["list"]:
            yield Expression(f"{path.name}: {annotation['name']}", annotation["expr"], alert=True)
        for panel in board["panels"]:
            for target in panel["targets"]:
                yield Expression(f"{path.name}: {panel['title']}", target["expr"])
    for rule in rules():
        yield Expression(str(rule.get("alert") or rule["record"]), rule["expr"], alert="alert" in rule)


def filled_in(promql: str, rate_interval: str = "1m") -> str:
    """Return the expression as Grafana sends it, with all instances, models and engines."""
    filled = promql.replace("$instance", ".*").replace("$model", ".*").replace("$engine", ".*")
    return filled.replace("$__rate_interval", rate_interval)


def metrics_in(promql: str) -> set[str]:
    """Return the names of its selectors. Raise ValueError for PromQL of another form."""
    tokens = list(_tokens(promql))
    names: set[str] = set()
    depth = 0
    grouping = False
    for index, (kind, text) in enumerate(tokens):
        after = tokens[index + 1][1] if index + 1 < len(tokens) else ""
        if text == "{":
            depth += 1
        elif text == "}":
            depth -= 1
        elif text == ")":
            grouping = False
        elif kind == "name" and not depth:
            if text in _WORDS:
                grouping = text not in ("and", "or", "unless", "bool", "offset")
            elif not grouping and after not in ("(",) and not _is_aggregation(text):
                names.add(text)
    if depth:
        raise ValueError(f"unbalanced: {promql}")
    return names


def _is_aggregation(word: str) -> bool:
    return word in ("sum", "max", "min", "avg", "count", "topk")


def _tokens(promql: str) -> Iterator[tuple[str, str]]:
    at = 0
    while at < len(promql):
        match = _TOKEN.match(promql, at)
        if match is None or match.lastgroup is None:
            raise ValueError(f"not read from {promql[at:]!r}")
        at = match.end()
        if match.lastgroup != "space":
            yield match.lastgroup, match.group()
