"""The report as one self-contained HTML file, for a reader who did not see the run."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from importlib.resources import files
from importlib.util import find_spec
from pathlib import Path

from loadtests import tables
from loadtests.canvas import Plot, PlotsMissing
from loadtests.pairs import Column, by_scenario, columns, sentences
from loadtests.plots import plots
from loadtests.record import VOID_IF, RunRecord
from loadtests.tables import Grid


@dataclass(frozen=True, slots=True)
class _Section:
    """One scenario."""

    name: str
    description: str
    sentences: tuple[str, ...]
    marks: tuple[str, ...]
    facts: tuple[tuple[str, str], ...]
    settings: tuple[tuple[str, str], ...]
    headline: Grid
    failures: Grid
    grids: tuple[Grid, ...]
    plots: tuple[Plot, ...]
    formulas: tuple[tuple[str, str], ...]


def check() -> None:
    """Raise PlotsMissing if what draws the page is not installed; called before a run, not after it."""
    for name in ("jinja2", "matplotlib"):
        if find_spec(name) is None:
            raise PlotsMissing(name)


def write(path: Path, runs: Sequence[RunRecord], machine: str | None = None) -> None:
    """Write the file. `machine` describes the machine; it may be None for runs whose settings name it."""
    path.write_text(render(runs, machine), "utf-8")


def render(runs: Sequence[RunRecord], machine: str | None = None) -> str:
    """Render the page; equal runs give equal text. What draws it must be installed: see `check`."""
    sections = [
        _section(f"p{number}", name, of_scenario, machine)
        for number, (name, of_scenario) in enumerate(by_scenario(runs).items())
    ]
    return page("report.html.j2", sections=sections)


def page(template: str, **values: object) -> str:
    """Render a file of `templates/`. Raise PlotsMissing if the extra `bench` is not installed."""
    try:
        from jinja2 import Environment, StrictUndefined
    except ImportError as error:
        raise PlotsMissing("jinja2") from error
    environment = Environment(
        autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    text = (files("loadtests") / "templates" / template).read_text("utf-8")
    return environment.from_string(text).render(**values) + "\n"


def _section(key: str, name: str, runs: Sequence[RunRecord], machine: str | None) -> _Section:
    found = columns(runs)
    grids = (
        tables.latencies(found, ranges=True),
        tables.totals(found),
        tables.populations(found),
        tables.server(found),
    )
    return _Section(
        name=name,
        description=runs[0].description,
        sentences=tuple(sentences(found)),
        marks=tuple(mark for column in found for mark in column.marks),
        facts=tuple(_facts(found, machine)),
        settings=tuple((name, value) for name, value in runs[0].settings.items() if name != "machine"),
        headline=tables.headline(found),
        failures=tables.failures(found),
        grids=tuple(grid for grid in grids if grid.rows),
        plots=tuple(plots(found, key)),
        formulas=tuple(tables.formulas(found)),
    )


def _facts(found: Sequence[Column], machine: str | None) -> list[tuple[str, str]]:
    run = found[0].rounds[0].run
    facts = []
    for column in found:
        first = column.rounds[0].run
        facts.append((column.label, f"{first.model} at {first.url}, {_times(column)}"))
        of_first = "in the first round " if len(column.shown) > 1 else ""
        facts.append(("", of_first + column.shown[0].counted))
    machines = sorted(
        {m for column in found for one in column.rounds if (m := one.run.settings.get("machine"))}
    )
    facts.append(("Machine", machine or "; ".join(machines) or "not recorded"))
    slo = f"TTFT ≤ {run.ttft_slo_seconds:g} s and TPOT ≤ {run.tpot_slo_seconds:g} s"
    facts.append(("SLO", slo))
    salts = sorted({one.run.salt for column in found for one in column.rounds})
    facts.append(("Seed, salt", f"{run.seed}; {', '.join(salts)}"))
    facts.append(("", "The seed draws lengths and times; the salt makes prompts that no cache knows."))
    facts.append(("Void", VOID_IF))
    facts.extend(("", f"{column.label}: {_health(column)}") for column in found)
    return facts


def _health(column: Column) -> str:
    """Say how near each run came to the bounds."""
    each = (one.run.generator for one in column.rounds)
    return "; ".join(f"{one.cpu_share:.0%} of a core, {one.lag_p99_seconds:.3f} s late" for one in each)


def _times(column: Column) -> str:
    rounds = [measures.run for measures in column.rounds]
    seconds = sum(run.ended_at for run in rounds)
    times = f"{len(rounds)} rounds" if len(rounds) > 1 else "one run"
    return f"{times} from {rounds[0].started}, {seconds:.0f} s in all"
