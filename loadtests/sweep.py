"""Sweep one option of Penstock over several values, under one scenario: one figure's cost in another.

A default is a trade-off between two figures; the curve shows it. Each value gets a server of its own, one
after another, so that they do not share the machine.
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
"""The value that omits the option."""
ALONE = "alone"


@dataclass(frozen=True, slots=True)
class Axis:
    """A figure of a run: `name`, or `name@population` for one population's."""

    figure: str

    def of(self, run: RunRecord) -> float | None:
        name, _, population = self.figure.partition("@")
        measures: Measures = measure(run)
        figures = measures.by_population.get(population, ()) if population else measures.figures
        return next((figure.value for figure in figures if figure.name == name), None)


@dataclass(frozen=True, slots=True)
class Point:
    """What one value of the option gave. `x` or `y` is None if the run has no value for it."""

    value: str
    x: float | None
    y: float | None


def launch_of(option: str, value: str) -> Launch:
    """Return Penstock with the option at this value."""
    arguments = () if value == DEFAULT else (option, value)
    return Launch(value, PRESETS["penstock"], arguments=arguments)


def points(runs: Sequence[RunRecord], x: Axis, y: Axis) -> list[Point]:
    """Return one point for each value's run. If a population was also measured alone, x is a multiple of its
    value then."""
    unit = next((x.of(run) for run in runs if run.target == ALONE), 1.0)
    found = []
    for run in runs:
        if run.target != ALONE:
            across = x.of(run)
            found.append(Point(run.target, across / unit if across is not None and unit else None, y.of(run)))
    return found


def plot(found: Sequence[Point], option: str, x_label: str, y_label: str) -> Plot:
    """Draw the curve. Raise PlotsMissing if matplotlib is not installed."""
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
            "A point a value, one run each; the diamond is the server's default. Nearer to the lower left"
            " corner is better; the curve is the trade-off between the two.",
            drawing.svg(),
        )
