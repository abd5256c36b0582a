"""The report of runs: tables on the terminal, and the same in one HTML file that needs nothing else."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from typing import Literal, TypeAlias

from jinja2 import Environment, StrictUndefined
from rich.console import Console
from rich.table import Table
from rich.text import Text

from loadtests.figures import COUNTED, FIGURES, Better, written
from loadtests.pairs import Column, columns, ratio
from loadtests.plots import CAPTION, Plot, plots
from loadtests.record import Outcome, RequestRecord, RunRecord
from loadtests.server_side import FORMULA, server_side

Tone: TypeAlias = Literal["", "bad"]
_ARROWS: dict[Better, str] = {"less": " ↓", "more": " ↑", "none": ""}
_HEADLINE = ("output_tokens_per_second", "ttft_p95", "itl_p99", "session_p50", "slo_attainment")
_OF_POPULATION = (
    *("ttft_p50", "ttft_p95", "itl_p50", "itl_p99", "itl_max", "output_tokens_per_second"),
    *("slo_attainment", "sent", "ok", "refused", "failed"),
)


@dataclass(frozen=True, slots=True)
class Grid:
    title: str
    note: str
    head: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    words: int = 1
    """How many of the first columns are words; the others are numbers."""
    tone: Tone = ""


@dataclass(frozen=True, slots=True)
class Section:
    """One scenario."""

    name: str
    description: str
    marks: tuple[str, ...]
    grids: tuple[Grid, ...]
    facts: tuple[tuple[str, str], ...]
    plots: tuple[Plot, ...] = ()
    formulas: tuple[tuple[str, str], ...] = ()


def sections(runs: Sequence[RunRecord], drawn: bool) -> Iterator[Section]:
    """Yield a section a scenario, for a page or for a terminal."""
    grouped: defaultdict[str, list[RunRecord]] = defaultdict(list)
    for run in runs:
        grouped[run.scenario].append(run)
    for name, of_scenario in grouped.items():
        found = columns(of_scenario)
        grids = (_failures(found), *_figures(found), _populations(found), _server(found))
        yield Section(
            name,
            of_scenario[0].description,
            tuple(mark for column in found for mark in column.marks),
            tuple(grid for grid in grids if grid.rows),
            tuple(_facts(found)),
            tuple(plots(found)) if drawn else (),
            tuple(_formulas(found)) if drawn else (),
        )


def print_report(runs: Sequence[RunRecord], console: Console) -> None:
    for section in sections(runs, drawn=False):
        console.print(Text(f"\n{section.name}: {section.description}", style="bold"))
        for mark in section.marks:
            console.print(Text(mark, style="bold white on red"))
        for grid in section.grids:
            style = "bold red" if grid.tone else "bold"
            table = Table(title=f"{grid.title}. {grid.note}", title_justify="left", title_style=style)
            for number, head in enumerate(grid.head):
                table.add_column(head, justify="left" if number < grid.words else "right", overflow="fold")
            for row in grid.rows:
                table.add_row(*map(Text, row))  # Not markup: a server's error message may contain brackets.
            console.print(table)


def write_html(path: Path, runs: Sequence[RunRecord]) -> None:
    environment = Environment(
        autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    template = (files("loadtests") / "report.html.j2").read_text("utf-8")
    page = environment.from_string(template).render(
        sections=list(sections(runs, drawn=True)), caption=CAPTION
    )
    path.write_text(page + "\n", "utf-8")


def _figures(found: Sequence[Column]) -> Iterator[Grid]:
    """Yield the figures that decide, and then all; a column a target, and one a pair."""
    most = max(len(column.shown) for column in found)
    note = "↓ less is better, ↑ more is better." + (
        f" Of {most} rounds: the median, and the range in brackets." if most > 1 else ""
    )
    head = ("", *(one.label for one in found), *(f"{found[0].label} / {one.label}" for one in found[1:]))
    for title, names in (("In short", _HEADLINE), ("All figures", tuple(FIGURES))):
        yield Grid(title, note, head, tuple(_row(found, name) for name in names if _is_known(found, name)))


def _is_known(found: Sequence[Column], name: str) -> bool:
    return any(column.across(name) is not None for column in found)


def _row(found: Sequence[Column], name: str) -> tuple[str, ...]:
    figure = FIGURES[name]
    cells = [across.text(figure.unit) if (across := one.across(name)) else written(None, "") for one in found]
    # Twice as many failures is no finding.
    compared = figure.better != "none" and figure.unit != "requests"
    pairs = [ratio(found[0], other, name) if compared else None for other in found[1:]]
    ratios = (pair.text("ratio") if pair else "" for pair in pairs)
    return (f"{figure.label}{_ARROWS[figure.better]}", *cells, *ratios)


def _failures(found: Sequence[Column]) -> Grid:
    """Return every kind of failure, of whole runs and of void ones too."""
    rows = []
    for column in found:
        requests = [request for measures in column.rounds for request in measures.run.requests]
        kinds = Counter(_kind(request) for request in requests if request.outcome is not Outcome.OK)
        for (kind, population), count in kinds.most_common():
            alike = (one.detail for one in requests if _kind(one) == (kind, population))
            example = next(filter(None, alike), "")
            rows.append((kind, column.label, population, f"{count} of {len(requests)}", example))
    head = ("kind", "target", "population", "requests", "first error")
    note = "In whole runs and all rounds: warm-up, tail and unmeasured populations included."
    return Grid("Refused and failed", note, head, tuple(rows), 5, "bad")


def _kind(request: RequestRecord) -> tuple[str, str]:
    status = f" {request.status}" if request.status not in (None, 200) else ""
    return f"{request.outcome.value}{status}", request.population


def _populations(found: Sequence[Column]) -> Grid:
    """Return each population's figures; empty if there is only one."""
    names = sorted({name for column in found for name in column.shown[0].by_population})
    rows = [
        (name, column.label, *(written(values[one], FIGURES[one].unit) for one in _OF_POPULATION))
        for name in (names if len(names) > 1 else ())
        for column in found
        if (values := column.shown[0].by_population.get(name))
    ]
    head = ("", "target", *(f"{FIGURES[one].label}{_ARROWS[FIGURES[one].better]}" for one in _OF_POPULATION))
    note = "The first round that is not void; unmeasured populations too."
    return Grid("By population", note, head, tuple(rows), 2)


def _server(found: Sequence[Column]) -> Grid:
    rows = [
        (label, column.label, written(server, "tokens"), written(client, "tokens"))
        for column in found
        for label, server, client in server_side(column.shown[0].run)
    ]
    return Grid("The target's own metrics", FORMULA, ("", "target", "server", "clients"), tuple(rows), 2)


def _facts(found: Sequence[Column]) -> Iterator[tuple[str, str]]:
    for column in found:
        run = column.shown[0].run
        health = "; ".join(
            f"{one.run.generator.cpu_share:.0%} of a core, {one.run.generator.lag_p99_seconds:.3f} s late"
            for one in column.rounds
        )
        counted = f"{column.shown[0].values['sent']:.0f} of {len(run.requests)} requests count"
        window = f"sent from {run.warm_up_seconds:.1f} s to {min(run.steady_until, run.ended_at):.1f} s"
        left_out = f"; not measured: {', '.join(run.unmeasured)}" if run.unmeasured else ""
        times = f"rounds: {len(column.rounds)}, from {run.started}"
        yield column.label, f"{run.model} at {run.url}, {times}: {counted}, {window}{left_out}"
        yield "its load generator", health
    yield from found[0].rounds[0].run.settings.items()


def _formulas(found: Sequence[Column]) -> Iterator[tuple[str, str]]:
    yield "What counts", COUNTED
    shown = {
        FIGURES[name].formula: FIGURES[name].label for name in reversed(FIGURES) if _is_known(found, name)
    }
    yield from ((label, formula) for formula, label in reversed(shown.items()))
