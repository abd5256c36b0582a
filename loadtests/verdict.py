"""Compare runs with a stored baseline: by ratio, figure by figure.

A baseline is a JSON file. Ratios between two targets of one comparison hold on any machine. Absolute values
hold on the machine that wrote them; their tolerances bound the deviation of another machine.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import permutations
from pathlib import Path

import msgspec

from loadtests.figures import Better, Figure, written
from loadtests.pairs import Column, columns, figures, ratio
from loadtests.record import RunRecord

TOLERANCE_RATIO = 1.25
"""The tolerance of a new baseline: a quarter worse."""


class Expected(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """`tolerance_ratio` 1.25 allows a quarter more of what should be less, and a fifth less of what should be
    more (1/1.25)."""

    value: float
    tolerance_ratio: float = TOLERANCE_RATIO

    def __post_init__(self) -> None:
        if self.tolerance_ratio < 1:
            raise ValueError("a tolerance_ratio is at least 1")
        if self.value < 0:
            raise ValueError("a value is not negative")


class Baseline(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    scenario: str
    figures: dict[str, Expected] = {}
    """Figures of the first target."""
    ratios: dict[str, dict[str, Expected]] = {}
    """`ours/other` to our figures divided by the other's."""


@dataclass(frozen=True, slots=True)
class Finding:
    """One figure against its baseline."""

    name: str
    """The figure's name; for a ratio, behind the pair of targets."""
    expected: float
    found: float | None
    worse_by: float | None
    """1.5 is half as bad again, in whichever direction is worse; None if there is nothing to compare."""
    tolerance_ratio: float
    unit: str

    @property
    def regressed(self) -> bool:
        return self.worse_by is None or self.worse_by > self.tolerance_ratio

    @property
    def words(self) -> str:
        expected, found = written(self.expected, self.unit), written(self.found, self.unit)
        if self.worse_by is None:
            return f"{self.name}: not measured, expected {expected}"
        allowed = f"{self.tolerance_ratio:.2f}× is allowed"
        return f"{self.name}: {found}, expected {expected}: {self.worse_by:.2f}× as bad, {allowed}"


@dataclass(frozen=True, slots=True)
class Verdict:
    findings: tuple[Finding, ...]
    problems: tuple[str, ...]
    """Why there can be no verdict, if so: void runs, another scenario, a missing target."""

    @property
    def regressions(self) -> tuple[Finding, ...]:
        return tuple(finding for finding in self.findings if finding.regressed)

    @property
    def exit_code(self) -> int:
        return 1 if self.regressions or self.problems else 0


def judge(runs: Sequence[RunRecord], baseline: Baseline) -> Verdict:
    """Compare the runs of the baseline's scenario; absolute figures are the first target's."""
    found = columns(run for run in runs if run.scenario == baseline.scenario)
    if not found:
        return Verdict((), (f"there is no run of the scenario {baseline.scenario!r}",))
    problems = [mark for column in found for mark in column.marks if mark.startswith("INTERRUPTED")]
    problems += [f"every run of {column.label} is void" for column in found if not column.believed]
    known = {figure.name: figure for figure in figures(found)}
    findings = []
    for name, expected in baseline.figures.items():
        across = found[0].across(name)
        findings.append(_finding(name, known.get(name), expected, across.median if across else None))
    pairs = {f"{one.label}/{other.label}": (one, other) for one, other in permutations(found, 2)}
    for pair, wanted in baseline.ratios.items():
        if pair not in pairs:
            there = ", ".join(column.label for column in found)
            problems.append(f"the baseline compares {pair}, and the runs are of {there}")
            continue
        for name, expected in wanted.items():
            across = ratio(*pairs[pair], name)
            figure = known.get(name)
            one = _finding(f"{pair} {name}", figure, expected, across.median if across else None, "ratio")
            findings.append(one)
    return Verdict(tuple(findings), tuple(problems))


def _finding(
    name: str, figure: Figure | None, expected: Expected, found: float | None, unit: str | None = None
) -> Finding:
    better: Better = figure.better if figure else "none"
    return Finding(
        name=name,
        expected=expected.value,
        found=found,
        worse_by=None if found is None else _worse_by(expected.value, found, better),
        tolerance_ratio=expected.tolerance_ratio,
        unit=unit or (figure.unit if figure else ""),
    )


def _worse_by(expected: float, found: float, better: Better) -> float:
    """Return how many times worse it is. If neither direction is better, any change counts as worse."""
    if expected == found:
        return 1.0
    more = found / expected if expected > 0 else float("inf")
    less = expected / found if found > 0 else float("inf")
    match better:
        case "less":
            return more
        case "more":
            return less
        case "none":
            return max(more, less)


STORED = (
    *("output_tokens_per_second", "ttft_p50", "ttft_p95", "itl_p50", "itl_p99", "e2e_p50", "session_p50"),
    *("slo_attainment", "cached_share", "failed"),
)
"""The contents of a new baseline; edit the file for more."""


def baseline_of(
    runs: Sequence[RunRecord], names: Sequence[str] = STORED, tolerance_ratio: float = TOLERANCE_RATIO
) -> Baseline:
    """Make a baseline from runs of one scenario: the first target's figures, and its ratios to every other
    target. Raise ValueError if the runs are void."""
    if len({run.scenario for run in runs}) != 1:
        raise ValueError("a baseline is of exactly one scenario")
    found = columns(runs)
    for column in found:
        if not column.believed:
            raise ValueError(f"every run of {column.label} is void; there is nothing to make a baseline from")
    return Baseline(
        scenario=runs[0].scenario,
        figures={
            name: Expected(across.median, tolerance_ratio)
            for name in names
            if (across := found[0].across(name)) is not None
        },
        ratios={
            f"{found[0].label}/{other.label}": _ratios(found[0], other, names, tolerance_ratio)
            for other in found[1:]
        },
    )


def _ratios(first: Column, other: Column, names: Sequence[str], tolerance: float) -> dict[str, Expected]:
    pairs = ((name, ratio(first, other, name)) for name in names)
    return {name: Expected(across.median, tolerance) for name, across in pairs if across is not None}


def load(path: Path) -> Baseline:
    """Return a file's baseline. Raise ValueError, which names the file, if it is none."""
    try:
        return msgspec.json.decode(path.read_bytes(), type=Baseline)
    except (OSError, msgspec.MsgspecError) as error:
        raise ValueError(f"{path} is not a baseline: {error}") from error


def save(path: Path, baseline: Baseline) -> None:
    path.write_bytes(msgspec.json.format(msgspec.json.encode(baseline), indent=1) + b"\n")
