"""Compare targets: the runs of each, and their ratios, pair by pair.

Times of two machines are not comparable, and times of two minutes on one machine hardly are. So a comparison
is a ratio of two runs of one round, taken in turn, and its range over the rounds is its error bar.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from statistics import median

from loadtests.figures import Measures, measure, written, written_range
from loadtests.record import RunRecord

P95_SAMPLES, P99_SAMPLES = 20, 100
"""With fewer, not one sample in the mean is beyond the percentile."""


@dataclass(frozen=True, slots=True)
class Across:
    """One figure, or one ratio, over rounds."""

    median: float
    least: float
    most: float
    rounds: int

    def text(self, unit: str) -> str:
        """Return the median, and the range if there are several rounds."""
        if self.least == self.most:
            return written(self.median, unit)
        return written_range(self.median, self.least, self.most, unit)


@dataclass(frozen=True, slots=True)
class Column:
    """One target's runs of one scenario."""

    label: str
    rounds: tuple[Measures, ...]

    @property
    def believed(self) -> tuple[Measures, ...]:
        """Return the runs that are not void."""
        return tuple(measures for measures in self.rounds if measures.run.generator.void is None)

    @property
    def shown(self) -> tuple[Measures, ...]:
        """Return the runs for a table: the valid ones, or all of them, marked, if none is valid."""
        return self.believed or self.rounds

    @property
    def marks(self) -> tuple[str, ...]:
        """Return the warnings that belong before any number of this column."""
        found = []
        for run in (measures.run for measures in self.rounds):
            if run.generator.void is not None:
                found.append(f"GENERATOR LATE: {self.label}, round {run.round}: {run.generator.void}")
            if run.interrupted:
                found.append(f"INTERRUPTED: {self.label}, round {run.round}, after {run.ended_at:.1f} s")
        samples = min(int(measures.values["sent"] or 0) for measures in self.shown)
        if samples < P95_SAMPLES:
            found.append(
                f"FEW SAMPLES: {self.label}: {samples} of the requests counted; a p95 takes {P95_SAMPLES}, a"
                f" p99 {P99_SAMPLES}, so those shown are little more than the slowest one"
            )
        # Latencies of a failing target are those of the survivors.
        if lost := sum(measures.values["failed"] or 0 for measures in self.shown):
            found.append(f"FAILED: {self.label}: {lost:.0f} counted requests; its latencies are the others'")
        return tuple(found)

    def across(self, name: str) -> Across | None:
        return _across(value for measures in self.shown if (value := measures.values[name]) is not None)


def columns(runs: Iterable[RunRecord]) -> list[Column]:
    """Return one column a target, in order of appearance. Runs of one target and round from two files are two
    columns."""
    seen: Counter[tuple[str, int]] = Counter()
    grouped: defaultdict[str, list[Measures]] = defaultdict(list)
    for run in runs:
        seen[run.target, run.round] += 1
        repeat = seen[run.target, run.round]
        grouped[run.target if repeat == 1 else f"{run.target} #{repeat}"].append(measure(run))
    return [Column(label, tuple(rounds)) for label, rounds in grouped.items()]


def ratio(first: Column, second: Column, name: str) -> Across | None:
    """Return first / second, round by round; None if no round has both, or the divisor is zero."""
    others = {measures.run.round: measures.values[name] for measures in second.believed}
    pairs = ((measures.values[name], others.get(measures.run.round)) for measures in first.believed)
    return _across(one / other for one, other in pairs if one is not None and other is not None and other > 0)


def _across(values: Iterable[float]) -> Across | None:
    found = list(values)
    return Across(median(found), min(found), max(found), len(found)) if found else None
