"""Several runs side by side: one column a target, ratios of rounds paired one to one, and the faster target.

Times of two machines are not comparable, and times of two minutes on one machine hardly are. So a comparison
is a ratio of two runs of one round, taken in turn, and its range over the rounds is its error bar.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from loadtests.figures import NOTHING, Figure, written, written_range
from loadtests.measure import Measures, measure
from loadtests.percentiles import median
from loadtests.record import RunRecord


@dataclass(frozen=True, slots=True)
class Across:
    """One figure, or one ratio, over rounds."""

    median: float
    least: float
    most: float
    rounds: int


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
        for measures in self.rounds:
            run = measures.run
            if run.generator.void is not None:
                found.append(f"GENERATOR LATE: {self.label}, round {run.round}: {run.generator.void}")
            if run.interrupted:
                found.append(f"INTERRUPTED: {self.label}, round {run.round}, after {run.ended_at:.1f} s")
        if (samples := min((_samples(measures) for measures in self.shown), default=0)) < P95_SAMPLES:
            found.append(
                f"FEW SAMPLES: {self.label}: {samples} of the requests counted; a p95 takes {P95_SAMPLES}, a"
                f" p99 {P99_SAMPLES}, so those shown are little more than the slowest one"
            )
        return tuple(found)

    def across(self, name: str) -> Across | None:
        return _across(value for measures in self.shown if (value := measures.value(name)) is not None)


P95_SAMPLES, P99_SAMPLES = 20, 100
"""With fewer, not one sample in the mean is beyond the percentile."""


def _samples(measures: Measures) -> int:
    return int(measures.value("sent") or 0)


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


def by_scenario(runs: Iterable[RunRecord]) -> dict[str, list[RunRecord]]:
    grouped: defaultdict[str, list[RunRecord]] = defaultdict(list)
    for run in runs:
        grouped[run.scenario].append(run)
    return dict(grouped)


def figures(columns: Sequence[Column]) -> list[Figure]:
    """Return every figure of any column, once, in order, with the value of the first column that has it."""
    found: dict[str, Figure] = {}
    for column in columns:
        for measures in column.shown:
            for figure in measures.figures:
                if figure.name not in found or found[figure.name].value is None:
                    found[figure.name] = figure
    return list(found.values())


def ratio(first: Column, second: Column, name: str) -> Across | None:
    """Return first / second, round by round; None if no round has both, or the divisor is zero."""
    others = {measures.run.round: measures.value(name) for measures in second.believed}
    pairs = ((measures.value(name), others.get(measures.run.round)) for measures in first.believed)
    return _across(one / other for one, other in pairs if one is not None and other is not None and other > 0)


def _across(values: Iterable[float]) -> Across | None:
    found = sorted(values)
    middle = median(found)
    return None if middle is None else Across(middle, found[0], found[-1], len(found))


# --- the sentence at the top

HEADLINE = ("output_tokens_per_second", "ttft_p95", "itl_p99", "session_p50")
"""The figures that decide which target is called faster."""

ALIKE = 1.02
"""A single pair of runs has no range; a ratio nearer to 1 than this counts as no difference."""


@dataclass(frozen=True, slots=True)
class _Claim:
    sign: int
    words: str


def sentences(columns: Sequence[Column]) -> list[str]:
    """Say which target is faster and by how much, for the first column against each other one."""
    if len(columns) == 1:
        return [_alone(columns[0])]
    return [_against(columns[0], other) for other in columns[1:]]


def _alone(column: Column) -> str:
    labels = {figure.name: figure for figure in figures([column])}
    parts = []
    for name in (*HEADLINE, "slo_attainment"):
        value = column.across(name)
        if value is not None:
            figure = labels[name]
            text = written_across(value, figure.unit)
            parts.append(f"{figure.label} {text.removesuffix(' tokens/s')}")
    late = "" if column.believed else " (the load generator was late: read tails as upper bounds)"
    return f"{column.label}{late}: {', '.join(parts) or 'nothing was answered'}.{_broken(column)}"


def _against(first: Column, second: Column) -> str:
    for column in (first, second):
        if not column.believed:
            return f"{first.label} against {second.label}: no verdict, every run of {column.label} is void."
    labels = {figure.name: figure for figure in figures([first, second])}
    claims = [
        claim for name in HEADLINE if (claim := _claim(labels[name], ratio(first, second, name))) is not None
    ]
    warning = "".join(map(_broken, (first, second)))
    if not claims:
        return f"{first.label} against {second.label}: nothing to compare.{warning}"
    signs = {claim.sign for claim in claims}
    if signs == {0}:
        verdict = f"No clear difference between {first.label} and {second.label}"
    elif -1 not in signs:
        verdict = f"{first.label} is faster than {second.label}"
    elif 1 not in signs:
        verdict = f"{first.label} is slower than {second.label}"
    else:
        verdict = f"{first.label} is faster than {second.label} in part, slower in part"
    return f"{verdict}: {', '.join(claim.words for claim in claims)}{_over(first, second)}.{warning}"


def _claim(figure: Figure, found: Across | None) -> _Claim | None:
    if found is None or found.least <= 0:
        return None
    grew = found.least > (1 if found.rounds > 1 else ALIKE)
    shrank = found.most < (1 if found.rounds > 1 else 1 / ALIKE)
    if not grew and not shrank:
        return _Claim(0, f"no clear difference in {figure.label} ({_factor(found)})")
    if figure.better == "more":
        return _Claim(1 if grew else -1, f"{_factor(found)} the {figure.label.lower()}")
    if grew:
        return _Claim(-1, f"{figure.label} {_factor(found)} as long")
    shorter = Across(1 / found.median, 1 / found.most, 1 / found.least, found.rounds)
    return _Claim(1, f"{figure.label} {_factor(shorter)} shorter")


def _factor(found: Across) -> str:
    """Return the median, and the range over rounds."""
    span = f" ({found.least:.2f}–{found.most:.2f})" if found.rounds > 1 else ""
    return f"{found.median:.2f}×{span}"


def _over(first: Column, second: Column) -> str:
    rounds = {measures.run.round for measures in first.believed}
    both = len(rounds & {measures.run.round for measures in second.believed})
    return f" (median and range of {both} paired rounds)" if both > 1 else " (one pair of runs)"


def _broken(column: Column) -> str:
    """Warn that latencies of a failing target are those of the survivors."""
    sent = sum(measures.value("sent") or 0 for measures in column.shown)
    lost = sum(measures.value("failed") or 0 for measures in column.shown)
    if not lost:
        return ""
    if not sum(measures.value("ok") or 0 for measures in column.shown):
        return f" {column.label} answered none of {sent:.0f} counted requests."
    return (
        f" {column.label} failed {lost:.0f} of {sent:.0f} counted requests; its latencies are of the others."
    )


def written_across(found: Across | None, unit: str) -> str:
    """Return the median, and the range if there are several rounds."""
    if found is None:
        return NOTHING
    if found.least == found.most:
        return written(found.median, unit)
    return written_range(found.median, found.least, found.most, unit)
