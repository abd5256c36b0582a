"""The contents of the report's tables, for the terminal and the page."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from loadtests.figures import Better, Figure, written
from loadtests.latencies import FAMILIES
from loadtests.pairs import HEADLINE, Column, figures, ratio, written_across
from loadtests.percentiles import QUANTILES
from loadtests.server_side import FORMULA
from loadtests.window import COUNTED

Tone = Literal["plain", "ratio", "quiet", "bad"]

ARROWS: dict[Better, str] = {"less": " ↓", "more": " ↑", "none": ""}
DIRECTIONS = "↓ less is better, ↑ more is better."


@dataclass(frozen=True, slots=True)
class Row:
    cells: tuple[str, ...]
    tone: Tone = "plain"
    opens_group: bool = False


@dataclass(frozen=True, slots=True)
class Grid:
    title: str
    note: str
    head: tuple[str, ...]
    rows: tuple[Row, ...]
    words: int = 1
    """How many of the first columns are words; the others are numbers."""


def _first_of(found: Sequence[Column], other: Column) -> str:
    return f"{found[0].label} / {other.label}"


def _rounds(found: Sequence[Column]) -> str:
    most = max(len(column.shown) for column in found)
    return f" Of {most} rounds: the median, and the range in brackets." if most > 1 else ""


def headline(found: Sequence[Column]) -> Grid:
    """Return the figures on which the summary sentence is based."""
    wanted = (*HEADLINE, "goodput", "slo_attainment")
    names = [figure for figure in figures(found) if figure.name in wanted]
    title = "Who is faster" if len(found) > 1 else "In short"
    return _grid(title, f"{DIRECTIONS}{_rounds(found)}", names, found)


def totals(found: Sequence[Column]) -> Grid:
    families = {f"{family.name}_{quantile}" for family in FAMILIES for quantile in QUANTILES}
    names = [figure for figure in figures(found) if figure.name not in families]
    return _grid("Rates, shares, counts", f"{DIRECTIONS}{_rounds(found)}", names, found)


def _grid(title: str, note: str, wanted: Sequence[Figure], found: Sequence[Column]) -> Grid:
    rows = []
    for figure in wanted:
        across = [column.across(figure.name) for column in found]
        if any(value is not None for value in across):
            cells = [_short(written_across(value, figure.unit), figure.unit) for value in across]
            compared = [_ratio(found[0], column, figure) for column in found[1:]]
            tone: Tone = "quiet" if figure.better == "none" else "plain"
            rows.append(Row((f"{figure.label}{ARROWS[figure.better]}", *cells, *compared), tone))
    head = ("", *(column.label for column in found), *(_first_of(found, column) for column in found[1:]))
    return Grid(title, note, head, tuple(rows))


_IN_LABELS = frozenset({"tokens/s", "tokens", "requests"})
"""Units that the row's label or the column's head already has; cells omit them to stay narrow."""


def _short(text: str, unit: str) -> str:
    return text.removesuffix(f" {unit}") if unit in _IN_LABELS else text


def _ratio(first: Column, second: Column, figure: Figure) -> str:
    """Return the ratio as text, empty for counts: twice as many failures is no finding."""
    if figure.better == "none" or figure.unit == "requests":
        return ""
    return _span(first, second, figure.name)


def _span(first: Column, second: Column, name: str) -> str:
    across = ratio(first, second, name)
    if across is None:
        return written(None, "ratio")
    return f"{across.median:.2f}×" + (f" ({across.least:.2f}–{across.most:.2f})" if across.rounds > 1 else "")


def latencies(found: Sequence[Column], ranges: bool) -> Grid:
    """Return a row a family and target, a column a quantile. `ranges` over rounds fit a page but no
    terminal."""
    rows: list[Row] = []
    for family in FAMILIES:
        names = [f"{family.name}_{quantile}" for quantile in QUANTILES]
        if all(column.across(name) is None for column in found for name in names):
            continue
        for index, column in enumerate(found):
            across = [column.across(name) for name in names]
            cells = [
                written_across(one, "s") if ranges else written(one.median if one else None, "s")
                for one in across
            ]
            rows.append(Row((family.label if index == 0 else "", column.label, *cells), "plain", index == 0))
        for column in found[1:]:
            ratios = (_span(found[0], column, name) for name in names)
            rows.append(Row(("", _first_of(found, column), *ratios), "ratio"))
    note = "Less is better." + _rounds(found)
    return Grid("Latencies", note, ("", "target", *QUANTILES), tuple(rows), words=2)


def failures(found: Sequence[Column]) -> Grid:
    """Return every kind of failure, in whole runs and in void ones too."""
    rows = []
    for column in found:
        counts: Counter[tuple[str, str]] = Counter()
        examples: dict[tuple[str, str], str] = {}
        for one in (one for measures in column.rounds for one in measures.failures):
            counts[one.kind, one.population] += one.count
            examples[one.kind, one.population] = examples.get((one.kind, one.population)) or one.example
        sent = sum(len(measures.run.requests) for measures in column.rounds)
        rows += [
            Row((kind, column.label, population, f"{count} of {sent}", examples[kind, population]), "bad")
            for (kind, population), count in counts.most_common()
        ]
    head = ("kind", "target", "population", "requests", "first error")
    note = "In whole runs and all rounds: warm-up, tail and unmeasured populations included."
    return Grid("Refused and failed", note, head, tuple(rows), words=5)


_POPULATION_FIGURES = {
    "ttft_p50": "TTFT p50 ↓",
    "ttft_p95": "TTFT p95 ↓",
    "itl_p50": "ITL p50 ↓",
    "itl_p99": "ITL p99 ↓",
    "itl_max": "ITL max ↓",
    "output_tokens_per_second": "tokens/s ↑",
    "slo_attainment": "in SLO ↑",
    "sent": "sent",
    "ok": "ok",
    "refused": "refused",
    "failed": "failed",
}


def populations(found: Sequence[Column]) -> Grid:
    """Return each population's figures; empty if there is only one."""
    names = sorted({name for column in found for name in column.shown[0].by_population})
    rows = []
    for name in names if len(names) > 1 else ():
        for index, column in enumerate(found):
            of_one = {figure.name: figure for figure in column.shown[0].by_population.get(name, ())}
            if of_one:
                shown = (of_one[figure] for figure in _POPULATION_FIGURES)
                cells = (_short(figure.text, figure.unit) for figure in shown)
                rows.append(Row((name if index == 0 else "", column.label, *cells), "plain", index == 0))
    note = "The first round that is not void; unmeasured populations too."
    return Grid("By population", note, ("", "target", *_POPULATION_FIGURES.values()), tuple(rows), words=2)


def server(found: Sequence[Column]) -> Grid:
    """Return the targets' own metrics beside their clients' figures; empty if none was scraped."""
    rows = [
        Row((row.label, column.label, written(row.server, row.unit), written(row.client, row.unit)))
        for column in found
        for row in column.shown[0].server
    ]
    head = ("", "target", "server", "clients")
    return Grid(
        "The target's own metrics", f"The first round that is not void. {FORMULA}", head, tuple(rows), words=2
    )


def formulas(found: Sequence[Column]) -> list[tuple[str, str]]:
    """Return each family's label and formula, once, of the figures that some column has."""
    seen: dict[str, str] = {}
    for figure in figures(found):
        if any(column.across(figure.name) is not None for column in found):
            seen.setdefault(figure.family, figure.formula)
    return [("What counts", COUNTED), *seen.items()]
