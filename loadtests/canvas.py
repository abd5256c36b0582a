"""Canvas for plots: matplotlib's SVG, deterministic for equal data, without ids that collide on a page."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from io import StringIO
from math import log10
from typing import TYPE_CHECKING, Any, Literal

from loadtests.figures import written

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#5b4fa2", "#6b6b6b")
"""The palette of Okabe and Ito, distinguishable for colour-blind readers; one colour a target or a
population."""

FAILURE_COLOUR = "#c00000"
INK, SOFT, GRID = "#1c1c1c", "#5c5c5c", "#d9d9d6"
_OF_THE_PAGE = {INK: "--ink", SOFT: "--soft", GRID: "--line", FAILURE_COLOUR: "--bad"}
"""Colours that the page has in both its themes: in the SVG they are its variables."""
WIDTH_INCHES = 6.4
RASTER_POINTS = 2_000
"""Series with more points than this are rasterized inside the SVG: ten thousand elements are a megabyte."""

_STYLE: dict[Any, Any] = {
    "font.size": 11,  # legible on a phone, which shows the plot at half its size
    "axes.titlesize": 11,
    "axes.titlelocation": "left",
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.axisbelow": True,
    "figure.facecolor": "none",
    "axes.facecolor": "none",
    "text.color": INK,
    "axes.labelcolor": INK,
    "axes.edgecolor": SOFT,
    "xtick.color": SOFT,
    "ytick.color": SOFT,
    "grid.color": GRID,
    "legend.frameon": False,
    "text.parse_math": False,  # a dollar in a name is no formula
    "svg.fonttype": "path",  # glyphs as paths: no missing font moves a label
}


class PlotsMissing(Exception):
    """matplotlib or Jinja is not installed."""

    def __init__(self, name: str) -> None:
        super().__init__(f"the HTML report needs {name}: pip install 'penstock[bench]'")


@dataclass(frozen=True, slots=True)
class Plot:
    title: str
    caption: str
    """How to read the plot."""
    svg: str


@contextmanager
def canvas(key: str, panels: int, panel_inches: float) -> Iterator[Canvas]:
    """Yield a canvas of stacked panels with common axes. `key` makes its SVG ids unique on the page."""
    from matplotlib import rc_context
    from matplotlib.figure import Figure

    with rc_context({**_STYLE, "svg.hashsalt": key}):
        height = 0.9 + panel_inches * panels
        figure = Figure(figsize=(WIDTH_INCHES, height), layout="constrained", dpi=150)
        axes = figure.subplots(panels, 1, sharex=True, sharey=True, squeeze=False)
        yield Canvas(key, figure, [row[0] for row in axes])


class Canvas:
    def __init__(self, key: str, figure: Figure, axes: list[Axes]) -> None:
        self._key = key
        self._figure = figure
        self.axes = axes

    def legend(self) -> None:
        """Draw one legend above all panels, each label once, so that it never covers data."""
        found: dict[str, Any] = {}
        for axes in self.axes:
            for handle, label in zip(*axes.get_legend_handles_labels(), strict=True):
                found.setdefault(label, handle)
        if found:
            self._figure.legend(
                found.values(),
                found.keys(),
                loc="outside upper left",
                ncols=min(3, len(found)),
                fontsize=10,
                columnspacing=1.2,
                handlelength=1.4,
                markerscale=1.8,
            )

    def svg(self) -> str:
        buffer = StringIO()
        self._figure.savefig(buffer, format="svg", metadata={"Date": None})
        return _inline(buffer.getvalue(), self._key)


def _inline(document: str, key: str) -> str:
    """Return only the `svg` element, without namespaces (HTML knows them) and fixed size, its ids
    prefixed."""
    svg = document[document.index("<svg") :].strip()
    svg = re.sub(r"<metadata>.*?</metadata>\s*", "", svg, flags=re.S)
    svg = re.sub(r"<!--.*?-->\s*", "", svg, flags=re.S)
    svg = re.sub(r'\s(xmlns(:\w+)?|version)="[^"]*"', "", svg)
    svg = svg.replace("xlink:href=", "href=")
    svg = re.sub(r'^<svg width="[^"]*" height="[^"]*"', "<svg", svg)
    svg = re.sub(r'(\sid=")', rf"\g<1>{key}-", svg)
    svg = re.sub(r'(href="#|url\(#)', rf"\g<1>{key}-", svg)
    for colour, variable in _OF_THE_PAGE.items():
        svg = svg.replace(f": {colour}", f": var({variable})")
    return re.sub(r"\n+", "\n", svg)


def seconds_axis(axes: Axes, which: Literal["x", "y"], samples: Sequence[float]) -> None:
    """Make a logarithmic axis of times, labelled in ms and s; minor labels only if there is room."""
    from matplotlib.ticker import FuncFormatter, LogLocator, NullLocator

    if which == "x":
        axes.set_xscale("log")
    else:
        axes.set_yscale("log")
    axis = axes.xaxis if which == "x" else axes.yaxis
    positive = [sample for sample in samples if sample > 0]
    decades = log10(max(positive) / min(positive)) if positive else 0
    axis.set_major_locator(LogLocator(subs=(1, 2, 5) if decades < 2.2 else (1,), numticks=12))
    axis.set_minor_locator(NullLocator())
    axis.set_major_formatter(FuncFormatter(lambda value, _: _tick(value)))


def _tick(seconds: float) -> str:
    if seconds < 0.000_999:
        return f"{seconds * 1e6:.3g} µs"
    text = written(seconds, "s")
    number, unit = text.split(" ")
    return f"{number.rstrip('0').rstrip('.') if '.' in number else number} {unit}"
