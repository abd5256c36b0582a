"""The last five minutes of a model, one sample a second: what the live page shows at first to a viewer who
opens it.

`History` is pure: `now` is an argument. A sample reads the figures that `/metrics` has: it costs nothing per
token or request, 0.4 ms a second while there is work (two engines), and next to nothing otherwise.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice

import trio
from prometheus_client import Histogram

from scheduler.shared.counters import Counters
from scheduler.shared.figures import figures_of
from scheduler.telemetry.containment import Containment
from scheduler.telemetry.instruments import buckets_of
from scheduler.telemetry.metrics import ModelMetrics

SAMPLE_SECONDS = 1.0
KEPT_SAMPLES = 300
WINDOW_SAMPLES = 10
"""Quantiles are of what was observed within this many samples: of one second alone they would be noise."""

_FIGURES = {figure: read for figure, read in figures_of(Counters).items() if figure.history}
_RATES = tuple(figure.history for figure in _FIGURES if figure.kind == "counter")
_GAUGES = tuple(figure.history for figure in _FIGURES if figure.kind == "gauge")
COLUMNS = ("time", *_RATES, "ttft_p50", "ttft_p95", "itl_p50", "itl_p95", "queued", *_GAUGES)
"""A sample: trio's clock, units a second since the sample before, quantiles in seconds (NaN where nothing was
observed), and what there is at its end."""


@dataclass(frozen=True, slots=True)
class Reading:
    """What is known at one moment. `figures`: sums over the engines, by column. `ttft` and `itl` are
    cumulative counts by ascending upper edge, in seconds. `queued` requests wait for an engine."""

    figures: Mapping[str, float]
    ttft: Sequence[tuple[float, float]]
    itl: Sequence[tuple[float, float]]
    queued: int


class History:
    """The last `kept` samples. They are numbered from 1, so that a reader can fetch only newer ones."""

    def __init__(self, kept: int = KEPT_SAMPLES) -> None:
        self._samples: deque[tuple[float, ...]] = deque(maxlen=kept)
        self._readings: deque[tuple[float, Reading]] = deque(maxlen=WINDOW_SAMPLES)
        self.number = 0
        """Number of the last sample; 0 before the first."""

    def add(self, now: float, reading: Reading) -> None:
        """Make a sample. The first call makes none: rates need two readings."""
        if self._readings:
            then, before = self._readings[-1]
            sample = _sample(now, reading, then, before, self._readings[0][1])
            self._samples.append(tuple(map(float, sample)))
            self.number += 1
        self._readings.append((now, reading))

    def since(self, number: int) -> dict[str, list[float | None]]:
        """Return the samples after `number` that are kept, as columns, the oldest first; None for NaN."""
        newer = min(self.number - number, len(self._samples))
        samples = list(islice(self._samples, len(self._samples) - newer, None))
        return {
            name: [None if math.isnan(one[place]) else one[place] for one in samples]
            for place, name in enumerate(COLUMNS)
        }


def _sample(now: float, reading: Reading, then: float, before: Reading, window: Reading) -> tuple[float, ...]:
    """`before` was read at `then`, `window` at the beginning of the quantiles' window."""
    seconds = max(now - then, 1e-3)
    return (
        now,
        # An engine that leaves takes its totals along.
        *(max(0.0, reading.figures[name] - before.figures[name]) / seconds for name in _RATES),
        quantile(reading.ttft, window.ttft, 0.5),
        quantile(reading.ttft, window.ttft, 0.95),
        quantile(reading.itl, window.itl, 0.5),
        quantile(reading.itl, window.itl, 0.95),
        reading.queued,
        *(reading.figures[name] for name in _GAUGES),
    )


def quantile(now: Sequence[tuple[float, float]], then: Sequence[tuple[float, float]], share: float) -> float:
    """Return the value below which `share` of the observations between two readings are, linear within its
    bucket; the last finite edge for one beyond it, NaN if there are none."""
    counts = [(edge, count - last) for (edge, count), (_, last) in zip(now, then, strict=True)]
    total = counts[-1][1] if counts else 0.0
    if total <= 0:
        return math.nan
    low = below = 0.0
    for edge, up_to in counts:
        if up_to >= share * total:
            if math.isinf(edge):
                break
            return low + (edge - low) * (share * total - below) / max(up_to - below, 1e-9)
        low, below = edge, up_to
    return low


def reading_of(metrics: ModelMetrics, queued: int) -> Reading:
    """Read a model's figures. `queued`: requests that no engine has."""

    def histogram(*series: Histogram) -> tuple[tuple[float, float], ...]:
        return tuple((float(edge), count) for edge, count in buckets_of(*series)[0].items())

    each = [engine.totals for engine in metrics.engines]
    return Reading(
        {figure.history: sum(map(read, each)) for figure, read in _FIGURES.items()},
        histogram(*metrics.ttft.values()),
        histogram(metrics.itl),
        queued,
    )


@dataclass(frozen=True, slots=True)
class RequestCounts:
    """How many requests wait for an engine, how many are in engines, and how many have ended since the
    start."""

    queued: int
    in_engine: int
    ended: int


class HistoryWatch:
    """Adds a sample a second to `history`, also while no page is open: a viewer who opens one later sees what
    was."""

    def __init__(self, metrics: ModelMetrics, work: Callable[[], RequestCounts]) -> None:
        self.history = History()
        self._metrics = metrics
        self._work = work
        self._seen: tuple[RequestCounts, Reading] | None = None
        self._containment = Containment(metrics.server)

    async def run(self) -> None:
        """Never returns by itself."""
        while True:
            self._containment.sample(self._look)
            await trio.sleep(SAMPLE_SECONDS)

    def _look(self) -> None:
        work = self._work()
        if self._seen is None or work.queued or work.in_engine or self._seen[0] != work:
            # The instruments of an idle model stand still, so they are read once and not again.
            self._seen = work, reading_of(self._metrics, work.queued)
        self.history.add(trio.current_time(), self._seen[1])
