"""One option of Penstock over several values, under one scenario: what one figure costs in another.

A default is a choice between two things that nobody can have both of; the curve shows what was chosen. Each
value gets a server of its own, one after another, so that they do not share the machine.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from loadtests.canvas import Plot, canvas
from loadtests.measure import Measures, measure
from loadtests.presets import PRESETS
from loadtests.record import RunRecord
from loadtests.targets import Launch

DEFAULT = "default"
"""The value that leaves the option out."""
ALONE = "alone"


@dataclass(frozen=True, slots=True)
class Axis:
    """A figure of a run: `name`, or `name@population` for what one population had."""

    figure: str

    def of(self, run: RunRecord) -> float | None:
        name, _, population = self.figure.partition("@")
        measures: Measures = measure(run)
        figures = measures.by_population.get(population, ()) if population else measures.figures
        return next((figure.value for figure in figures if figure.name == name), None)


@dataclass(frozen=True, slots=True)
class Point:
    """None where the run had nothing to compute it from."""

    value: str
    x: float | None
    y: float | None


def launch_of(option: str, value: str) -> Launch:
    """Penstock with the option at this value."""
    arguments = () if value == DEFAULT else (option, value)
    return Launch(value, PRESETS["penstock"], arguments=arguments)


def points(runs: Sequence[RunRecord], x: Axis, y: Axis) -> list[Point]:
    """One for each value's run. Where a population was also measured alone, x is a multiple of what it had
    then."""
    unit = next((x.of(run) for run in runs if run.target == ALONE), 1.0)
    found = []
    for run in runs:
        if run.target != ALONE:
            across = x.of(run)
            found.append(Point(run.target, across / unit if across is not None and unit else None, y.of(run)))
    return found


def plot(found: Sequence[Point], option: str, x_label: str, y_label: str) -> Plot:
    """Raises PlotsMissing where matplotlib is not installed."""
    drawn = [
        (point.x, point.y, point.value) for point in found if point.x is not None and point.y is not None
    ]
    with canvas("sweep", 1, 3.4) as drawing:
        axes = drawing.axes[0]
        curve = sorted(one for one in drawn if one[2] != DEFAULT)
        axes.plot([x for x, _, _ in curve], [y for _, y, _ in curve], marker="o", label=option)
        chosen = [one for one in drawn if one[2] == DEFAULT]
        axes.plot([x for x, _, _ in chosen], [y for _, y, _ in chosen], "D", markersize=9, label=DEFAULT)
        for across, up, value in curve:
            axes.annotate(value, (across, up), textcoords="offset points", xytext=(6, 5), fontsize=9)
        axes.set_xlabel(x_label)
        axes.set_ylabel(y_label)
        drawing.legend()
        return Plot(
            f"{option}: {y_label} against {x_label}",
            "A point a value, one run each; the diamond is the server's own choice. Nearer to the lower left"
            " corner is better; along the curve one is bought with the other.",
            drawing.svg(),
        )
