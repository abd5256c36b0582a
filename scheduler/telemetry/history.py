"""The last five minutes of a model, one sample a second: what the live page shows at first to a viewer who
opens it.

`History` is pure: `now` is an argument. It is a ring of columns of doubles, 300 x 13 x 8 bytes = 31 kB a
model, whether a page is open or not. A sample reads the instruments that `/metrics` has: it costs nothing per
token or request, 0.4 ms a second while there is work (two engines), and next to nothing otherwise.
"""

from __future__ import annotations

import math
from array import array
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import astuple, dataclass, fields

import trio
from prometheus_client import Histogram

from scheduler.telemetry.containment import Containment
from scheduler.telemetry.metrics import ModelMetrics
from scheduler.telemetry.readings import buckets_of, value_of

SAMPLE_SECONDS = 1.0
KEPT_SAMPLES = 300
WINDOW_SAMPLES = 10
"""Quantiles are of what was observed within this many samples: of one second alone they would be noise."""


@dataclass(frozen=True, slots=True)
class InstrumentValues:
    """The instruments' values at one moment. Tokens are totals since the start; `ttft` and `itl` are
    cumulative counts by ascending upper edge, in seconds."""

    generated_tokens: float
    prefilled_tokens: float
    cached_tokens: float
    ttft: Sequence[tuple[float, float]]
    itl: Sequence[tuple[float, float]]
    queued: int
    engine_waiting: int
    running: int
    running_bytes: int
    prefix_bytes: int


@dataclass(frozen=True, slots=True)
class Sample:
    """One second. `time` is trio's clock. `generated`, `prefilled` and `cached` are tokens a second since the
    sample before; `cached` counts prompt tokens found in the prefix cache. `ttft_*` and `itl_*`: seconds, NaN
    where nothing was observed. `queued` requests wait for an engine, `engine_waiting` in one for a slot;
    `running` have one."""

    time: float
    generated: float
    prefilled: float
    cached: float
    ttft_p50: float
    ttft_p95: float
    itl_p50: float
    itl_p95: float
    queued: float
    engine_waiting: float
    running: float
    running_bytes: float
    prefix_bytes: float


COLUMNS = tuple(field.name for field in fields(Sample))


class History:
    """The last `kept` samples. They are numbered from 1, so that a reader can fetch only newer ones."""

    def __init__(self, kept: int = KEPT_SAMPLES) -> None:
        self._kept = kept
        self._columns = {name: array("d", bytes(8 * kept)) for name in COLUMNS}
        self._readings: deque[tuple[float, InstrumentValues]] = deque(maxlen=WINDOW_SAMPLES)
        self.number = 0
        """Number of the last sample; 0 before the first."""

    def add(self, now: float, reading: InstrumentValues) -> None:
        """Make a sample. The first call makes none: rates need two readings."""
        if self._readings:
            then, before = self._readings[-1]
            sample = _sample(now, reading, max(now - then, 1e-3), before, self._readings[0][1])
            place = self.number % self._kept
            for name, value in zip(COLUMNS, astuple(sample), strict=True):
                self._columns[name][place] = value
            self.number += 1
        self._readings.append((now, reading))

    def since(self, number: int) -> dict[str, list[float | None]]:
        """Return the samples after `number` that are kept, as columns, the oldest first; None for NaN."""
        first = max(number, self.number - self._kept)
        places = [one % self._kept for one in range(first, self.number)]
        return {
            name: [None if math.isnan(column[place]) else column[place] for place in places]
            for name, column in self._columns.items()
        }


def _sample(
    now: float, reading: InstrumentValues, seconds: float, before: InstrumentValues, window: InstrumentValues
) -> Sample:
    """`before` was read `seconds` ago, `window` at the beginning of the quantiles' window."""

    def per_second(total: float, last: float) -> float:
        # An engine that leaves takes its totals along.
        return max(0.0, total - last) / seconds

    return Sample(
        now,
        per_second(reading.generated_tokens, before.generated_tokens),
        per_second(reading.prefilled_tokens, before.prefilled_tokens),
        per_second(reading.cached_tokens, before.cached_tokens),
        quantile(reading.ttft, window.ttft, 0.5),
        quantile(reading.ttft, window.ttft, 0.95),
        quantile(reading.itl, window.itl, 0.5),
        quantile(reading.itl, window.itl, 0.95),
        reading.queued,
        reading.engine_waiting,
        reading.running,
        reading.running_bytes,
        reading.prefix_bytes,
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


def reading_of(metrics: ModelMetrics, queued: int) -> InstrumentValues:
    """Read a model's instruments. `queued`: requests that no engine has."""
    engines = metrics.engines

    def histogram(*series: Histogram) -> tuple[tuple[float, float], ...]:
        return tuple((float(edge), count) for edge, count in buckets_of(*series)[0].items())

    return InstrumentValues(
        sum(value_of(engine.generated_tokens) for engine in engines),
        sum(value_of(engine.prefilled_tokens) for engine in engines),
        sum(value_of(engine.prefix_hit_tokens) for engine in engines),
        histogram(*metrics.ttft.values()),
        histogram(metrics.itl),
        queued,
        int(sum(value_of(engine.waiting) for engine in engines)),
        int(sum(value_of(engine.running) for engine in engines)),
        int(sum(value_of(engine.kv_bytes) for engine in engines)),
        int(sum(value_of(engine.prefix_bytes) for engine in engines)),
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
        self._seen: tuple[RequestCounts, InstrumentValues] | None = None
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
