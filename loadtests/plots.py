"""The report's plots, each from the records of one scenario. `canvas.py` has how they are drawn."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import TYPE_CHECKING

from loadtests.canvas import COLOURS, FAILURE_COLOUR, RASTER_POINTS, SOFT, Plot, canvas, seconds_axis
from loadtests.latencies import each
from loadtests.measure import Measures
from loadtests.pairs import Column
from loadtests.percentiles import median, percentile
from loadtests.record import Outcome, RequestRecord, RunRecord
from loadtests.window import Window, gaps, tokens_within, ttft, window

if TYPE_CHECKING:
    from matplotlib.axes import Axes

SHORTEST = 0.000_1
"""Shorter gaps are drawn here: deltas from one read have no measurable time between them."""
CDF_POINTS = 400
WATERFALL_SESSIONS = 32


def plots(columns: Sequence[Column], key: str) -> list[Plot]:
    """Return the plots for which the runs have data. `key` keeps several scenarios on one page apart."""
    drawn = (
        _cdf(columns, f"{key}-ttft", "TTFT", lambda view: each(view, ttft)),
        _cdf(columns, f"{key}-itl", "ITL", lambda view: [gap for r in view.sent for gap in gaps(r)]),
        _cdf(
            columns, f"{key}-e2e", "E2E", lambda view: each(view, lambda r: r.ended_at - r.sent_at, ok=True)
        ),
        _throughput(columns, f"{key}-throughput"),
        _ttft_over_time(columns, f"{key}-time"),
        _itl_timeline(columns, f"{key}-gaps"),
        _waterfall(columns, f"{key}-sessions"),
    )
    return [plot for plot in drawn if plot is not None]


def _first(columns: Sequence[Column]) -> list[tuple[str, RunRecord]]:
    """Return one run a target: two rounds over time would overlap."""
    found: list[tuple[str, RunRecord]] = []
    for column in columns:
        measures: Measures = column.shown[0]
        several = f", round {measures.run.round}" if len(column.rounds) > 1 else ""
        found.append((f"{column.label}{several}", measures.run))
    return found


# --- distributions


def _cdf(
    columns: Sequence[Column], key: str, name: str, samples: Callable[[Window], list[float]]
) -> Plot | None:
    pooled = [
        (
            column.label,
            sorted(max(sample, SHORTEST) for one in column.shown for sample in samples(window(one.run))),
        )
        for column in columns
    ]
    if not any(values for _, values in pooled):
        return None
    with canvas(key, 1, 2.9) as drawing:
        axes = drawing.axes[0]
        for (label, values), colour in zip(pooled, COLOURS * len(pooled), strict=False):
            if values:
                points = min(len(values), CDF_POINTS)
                shares = [place / max(1, points - 1) for place in range(points)]
                axes.plot(
                    [percentile(values, share) for share in shares],
                    [100 * share for share in shares],
                    color=colour,
                    linewidth=2,
                    label=f"{label} ({len(values)})",
                )
        if name == "TTFT":
            slo = columns[0].shown[0].run.ttft_slo_seconds
            axes.axvline(slo, color=SOFT, linestyle="--", linewidth=1, label="SLO")
        seconds_axis(axes, "x", [value for _, values in pooled for value in values])
        axes.set_xlabel(f"{name} (ms and s, logarithmic)")
        axes.set_ylabel("share of samples (%)")
        axes.set_yticks([0, 25, 50, 75, 95])
        axes.set_ylim(0, 101)
        drawing.legend()
        return Plot(
            f"{name}: share of samples within a time",
            "Further left is faster. The height is the share of samples within this time; the number in"
            " the legend is the number of samples of all rounds that are not void.",
            drawing.svg(),
        )


# --- over time


def _ttft_over_time(columns: Sequence[Column], key: str) -> Plot | None:
    runs = _first(columns)
    times = [max(value, SHORTEST) for _, run in runs for r in run.requests if (value := ttft(r)) is not None]
    if not any(run.requests for _, run in runs):
        return None
    populations = sorted({request.population for _, run in runs for request in run.requests})
    with canvas(key, len(runs), 2.1) as drawing:
        for axes, (label, run) in zip(drawing.axes, runs, strict=True):
            for population, colour in zip(populations, COLOURS * len(populations), strict=False):
                points = [
                    (r.sent_at, max(value, SHORTEST))
                    for r in run.requests
                    if r.population == population and (value := ttft(r)) is not None
                ]
                _scatter(axes, points, colour, population)
            _failures(axes, run)
            _unmeasured(axes, run)
            axes.set_title(label)
            axes.set_ylabel("TTFT (ms, s)")
        if times:
            seconds_axis(drawing.axes[0], "y", times)
        drawing.axes[-1].set_xlabel("sent, seconds from the run's start (s)")
        drawing.legend()
        return Plot(
            "TTFT over time",
            "A point a request, at its sending; a cross on the upper edge is a request that failed or was"
            " refused. Grey: warm-up and tail, which are not measured.",
            drawing.svg(),
        )


def _scatter(axes: Axes, points: Sequence[tuple[float, float]], colour: str, label: str) -> None:
    if points:
        many = len(points) > RASTER_POINTS
        axes.scatter(
            [x for x, _ in points],
            [y for _, y in points],
            s=5 if many else 12,
            color=colour,
            alpha=0.5 if many else 0.75,
            linewidths=0,
            label=label,
            rasterized=many,
        )


def _failures(axes: Axes, run: RunRecord) -> None:
    failed = [r.sent_at for r in run.requests if r.outcome not in (Outcome.OK, Outcome.HUNG_UP)]
    if failed:
        axes.plot(
            failed,
            [1.0] * len(failed),
            "x",
            color=FAILURE_COLOUR,
            transform=axes.get_xaxis_transform(),
            clip_on=False,
            label="failed or refused",
            rasterized=len(failed) > RASTER_POINTS,
        )


def _unmeasured(axes: Axes, run: RunRecord) -> None:
    for start, end in ((0.0, run.warm_up_seconds), (run.steady_until, run.ended_at)):
        if end > start:
            axes.axvspan(start, end, color=SOFT, alpha=0.15, linewidth=0)


def _itl_timeline(columns: Sequence[Column], key: str) -> Plot | None:
    runs = _first(columns)
    every = [max(gap, SHORTEST) for _, run in runs for r in run.requests for gap in gaps(r)]
    if not every:
        return None
    decoding = sorted({r.population for _, run in runs for r in run.requests if len(r.stamps) > 1})
    with canvas(key, len(runs), 2.1) as drawing:
        for axes, (label, run) in zip(drawing.axes, runs, strict=True):
            for population, colour in zip(decoding, COLOURS * len(decoding), strict=False):
                points = [
                    (after, max(after - before, SHORTEST))
                    for r in run.requests
                    if r.population == population
                    for before, after in pairwise(r.stamps)
                ]
                _scatter(axes, points, colour, population)
            axes.set_title(label)
            axes.set_ylabel("gap (ms, s)")
        seconds_axis(drawing.axes[0], "y", every)
        drawing.axes[-1].set_xlabel("arrived, seconds from the run's start (s)")
        drawing.legend()
        return Plot(
            "Gaps between tokens over time",
            "A point a gap between two deltas of one stream; a high point is a stall.",
            drawing.svg(),
        )


# --- throughput


def _throughput(columns: Sequence[Column], key: str) -> Plot | None:
    clouds = [(column.label, [p for one in column.shown for p in slices(one.run)]) for column in columns]
    if not any(points for _, points in clouds):
        return None
    with canvas(key, 1, 2.9) as drawing:
        axes = drawing.axes[0]
        for (label, points), colour in zip(clouds, COLOURS * len(clouds), strict=False):
            _scatter(axes, points, colour, label)
            middles = _middles(points)
            if len(middles) > 1:
                axes.plot([x for x, _ in middles], [y for _, y in middles], color=colour, linewidth=1.5)
        axes.set_xlim(left=0)
        axes.set_ylim(bottom=0)
        axes.set_xlabel("requests in flight (mean of the slice)")
        axes.set_ylabel("output (tokens/s)")
        drawing.legend()
        return Plot(
            "Throughput against concurrency",
            "A point a slice of time (a fortieth of the window); higher at the same place is faster. Lines:"
            " the median of slices with about as many requests in flight, where there are three or more.",
            drawing.svg(),
        )


def slices(run: RunRecord) -> list[tuple[float, float]]:
    """Return (requests in flight, output tokens/s) of each fortieth of the window, over all populations: a
    server works for unmeasured ones too."""
    view = window(run)
    width = view.seconds / 40
    if width <= 0:
        return []
    found = []
    for number in range(40):
        start = view.start + number * width
        end = start + width
        near = [r for r in run.requests if r.sent_at < end and r.ended_at > start]
        busy = sum(min(r.ended_at, end) - max(r.sent_at, start) for r in near)
        if near:
            found.append((busy / width, sum(tokens_within(r, start, end) for r in near) / width))
    return found


def _middles(points: Sequence[tuple[float, float]]) -> list[tuple[float, float]]:
    """Return medians for at most twelve levels of concurrency."""
    most = max((x for x, _ in points), default=0.0)
    step = max(1.0, most / 12)
    steps: dict[int, list[tuple[float, float]]] = {}
    for x, y in points:
        steps.setdefault(int(x / step), []).append((x, y))
    return [
        (median(x for x, _ in group) or 0.0, median(y for _, y in group) or 0.0)
        for _, group in sorted(steps.items())
        if len(group) >= 3
    ]


# --- sessions


def _waterfall(columns: Sequence[Column], key: str) -> Plot | None:
    runs = _first(columns)
    if not any(run.requests for _, run in runs):
        return None
    rows = [_sessions(run) for _, run in runs]
    most = max(len(sessions) for sessions in rows)
    with canvas(key, len(runs), 1.2 + 0.055 * most) as drawing:
        for axes, (label, run), sessions in zip(drawing.axes, runs, rows, strict=True):
            for row, requests in enumerate(sessions, start=1):
                _bars(axes, row, requests, shortest=0.008 * run.ended_at)
            total = len({request.session for request in run.requests})
            axes.set_title(f"{label}: {len(sessions)} of {total} sessions")
            axes.set_ylabel("session")
            axes.grid(axis="y", visible=False)
        drawing.axes[0].set_ylim(most + 0.7, 0.3)
        drawing.axes[-1].set_xlim(left=0)
        drawing.axes[-1].set_xlabel("seconds from the run's start (s)")
        drawing.legend()
        return Plot(
            "Sessions, turn by turn",
            "A row a session, in order of their first send; a bar a request: pale while it waits for its"
            " first token, full while it streams. A row that ends further left was done sooner.",
            drawing.svg(),
        )


def _sessions(run: RunRecord) -> list[list[RequestRecord]]:
    by_name: dict[str, list[RequestRecord]] = {}
    for request in sorted(run.requests, key=lambda request: request.sent_at):
        by_name.setdefault(request.session, []).append(request)
    return list(by_name.values())[:WATERFALL_SESSIONS]


def _bars(axes: Axes, row: int, requests: Sequence[RequestRecord], shortest: float) -> None:
    """Draw a failure at least `shortest` seconds wide: a refused connection takes no time but must be
    visible."""
    waiting, streaming, broken = [], [], []
    for request in requests:
        first = request.stamps[0] if request.stamps else request.ended_at
        waiting.append((request.sent_at, first - request.sent_at))
        if request.outcome in (Outcome.OK, Outcome.HUNG_UP):
            streaming.append((first, request.ended_at - first))
        else:
            broken.append((first, max(request.ended_at - first, shortest)))
    for bars, colour, label in (
        (waiting, "#a8cfe6", "waiting for the first token"),
        (streaming, "#0072b2", "streaming"),
        (broken, FAILURE_COLOUR, "failed or refused"),
    ):
        if bars:
            axes.broken_barh(bars, (row - 0.4, 0.8), color=colour, linewidth=0, label=label)
