"""The final tables on the terminal, of one run or several side by side; warnings come first."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Console, Group, RenderableType
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from loadtests import tables
from loadtests.pairs import Column, by_scenario, columns, sentences
from loadtests.record import RunRecord
from loadtests.tables import Grid, Tone
from loadtests.verdict import Verdict

_STYLES: dict[Tone, str] = {"plain": "", "ratio": "cyan", "quiet": "dim", "bad": "bold red"}


def print_report(runs: Sequence[RunRecord], console: Console | None = None, formulas: bool = False) -> None:
    """Print the whole report; `formulas` adds how each figure is computed."""
    console = console or Console()
    for name, of_scenario in by_scenario(runs).items():
        found = columns(of_scenario)
        console.print(scenario_report(name, found))
        if formulas:
            console.print(_formulas(found))


def scenario_report(name: str, found: Sequence[Column]) -> RenderableType:
    parts: list[RenderableType] = [
        Panel(Text("\n".join(sentences(found)), style="bold"), title=name, title_align="left")
    ]
    parts += [Text(mark, style="bold white on red") for column in found for mark in column.marks]
    for grid in (
        tables.failures(found),
        tables.latencies(found, ranges=False),
        tables.totals(found),
        tables.populations(found),
        tables.server(found),
    ):
        if grid.rows:
            parts.append(_table(grid))
    for column in found:
        parts.append(Text(f"{column.label}: {column.shown[0].counted}", style="dim"))
    return Group(*parts)


def _table(grid: Grid) -> Table:
    bad = any(row.tone == "bad" for row in grid.rows)
    table = Table(
        title=f"{grid.title}. {grid.note}",
        title_justify="left",
        title_style="bold red" if bad else "bold",
        border_style="red" if bad else "",
    )
    for number, head in enumerate(grid.head):
        justify = "left" if number < grid.words else "right"
        table.add_column(head, justify=justify, overflow="fold")  # type: ignore[arg-type]
    for row in grid.rows:
        if row.opens_group and table.row_count:
            table.add_section()
        # Text, not markup: a server's error message may contain brackets.
        table.add_row(*(Text(cell, style=_STYLES[row.tone]) for cell in row.cells))
    return table


def _formulas(found: Sequence[Column]) -> RenderableType:
    table = Table.grid(padding=(0, 2))
    for label, formula in tables.formulas(found):
        table.add_row(Text(label, style="bold"), Text(formula))
    return table


def verdict_report(verdict: Verdict) -> RenderableType:
    """Return why there is no verdict, if so; then each figure, regressions in red."""
    parts: list[RenderableType] = [Text(problem, style="bold red") for problem in verdict.problems]
    for finding in verdict.findings:
        word, style = ("WORSE", "bold red") if finding.regressed else ("held ", "")
        parts.append(Text(f"{word} {finding.words}", style=style))
    if verdict.exit_code == 0:
        parts.append(Text("No regression.", style="green"))
    else:
        parts.append(Text(f"{len(verdict.regressions)} regressed.", style="bold red"))
    return Group(*parts)
