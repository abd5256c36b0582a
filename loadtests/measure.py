"""Every figure of one run, computed from its record alone, beside its formula."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from loadtests.figures import Figure
from loadtests.latencies import FAMILIES
from loadtests.percentiles import spread
from loadtests.record import Outcome, RequestRecord, RunRecord
from loadtests.server_side import Beside, server_side
from loadtests.totals import SINGLES
from loadtests.window import Window, window


@dataclass(frozen=True, slots=True)
class Failures:
    """Requests of the whole run that ended alike: failures in the warm-up count too."""

    kind: str
    """Outcome and HTTP status."""
    population: str
    count: int
    example: str
    """The detail of the first of these requests."""


@dataclass(frozen=True, slots=True)
class Measures:
    """All figures that a report has of one run."""

    run: RunRecord
    counted: str
    figures: tuple[Figure, ...]
    by_population: dict[str, tuple[Figure, ...]]
    """Includes unmeasured populations: a flood's own latency is worth reporting."""
    outcomes: dict[Outcome, int]
    """Outcomes of the counted requests."""
    failures: tuple[Failures, ...]
    """Most frequent first."""
    server: tuple[Beside, ...]

    def value(self, name: str) -> float | None:
        return next((figure.value for figure in self.figures if figure.name == name), None)


def measure(run: RunRecord) -> Measures:
    view = window(run)
    populations = sorted({request.population for request in run.requests})
    return Measures(
        run=run,
        counted=_counted(run, view),
        figures=(*_figures(view), *_generator(run)),
        by_population={
            population: tuple(_figures(window(run, frozenset({population})))) for population in populations
        },
        outcomes={
            outcome: count
            for outcome in Outcome
            if (count := sum(request.outcome is outcome for request in view.sent))
        },
        failures=tuple(_failures(run.requests)),
        server=tuple(server_side(run)),
    )


def _counted(run: RunRecord, view: Window) -> str:
    names = ", ".join(sorted({request.population for request in view.around})) or "no population"
    left_out = f"; not measured: {', '.join(run.unmeasured)}" if run.unmeasured else ""
    return (
        f"{len(view.sent)} of {len(run.requests)} requests count: {names},"
        f" sent from {view.start:.1f} s to {view.end:.1f} s{left_out}"
    )


def _failures(requests: Sequence[RequestRecord]) -> list[Failures]:
    groups: defaultdict[tuple[str, str], list[RequestRecord]] = defaultdict(list)
    for request in requests:
        if request.outcome not in (Outcome.OK, Outcome.HUNG_UP):
            status = f" {request.status}" if request.status not in (None, 200) else ""
            groups[f"{request.outcome.value}{status}", request.population].append(request)
    return sorted(
        (
            Failures(kind, population, len(group), next((item.detail for item in group if item.detail), ""))
            for (kind, population), group in groups.items()
        ),
        key=lambda failures: (-failures.count, failures.kind, failures.population),
    )


def _figures(view: Window) -> list[Figure]:
    figures: list[Figure] = []
    for family in FAMILIES:
        samples = family.samples(view)
        figures += (
            Figure(
                name=f"{family.name}_{quantile}",
                label=f"{family.label} {quantile}",
                value=value,
                unit="s",
                formula=family.formula,
                better="less",
                family=family.label,
                samples=len(samples),
            )
            for quantile, value in spread(samples).items()
        )
    figures += (
        Figure(
            one.name, one.label, one.value(view), one.unit, one.formula, one.better, one.label.lstrip("– ")
        )
        for one in SINGLES
    )
    return figures


def _generator(run: RunRecord) -> list[Figure]:
    health = run.generator
    used = "the load generator's processor seconds / the run's seconds"
    late = "lateness of the generator's own timer and of its scheduled requests"
    return [
        Figure(f"generator_{name}", f"Generator {label}", value, unit, formula, "none", f"Generator {family}")
        for name, label, value, unit, formula, family in (
            ("cpu", "CPU", health.cpu_share, "cores", used, "CPU"),
            ("lag_p50", "lag p50", health.lag_p50_seconds, "s", late, "lag"),
            ("lag_p99", "lag p99", health.lag_p99_seconds, "s", late, "lag"),
        )
    ]


def agents_sustained(
    attainment: Callable[[int], float], least: int = 1, most: int = 1024, target: float = 0.95
) -> int:
    """Return the largest number of agents from `least` to `most` whose SLO attainment reaches `target`; 0 if
    even `least` misses it.

    It doubles while the target is reached, then bisects, so it measures about 2·log2(N) times, each number
    once. It assumes that attainment falls as agents are added. If noise breaks that, the result is still a
    number that reached the target, next to one that did not.
    """
    if least < 1 or most < least:
        raise ValueError(f"no number of agents from {least} to {most}")
    reached, missed = 0, most + 1
    number = least
    while reached < most:
        if attainment(number) >= target:
            reached = number
        else:
            missed = number
            break
        number = min(most, number * 2)
    while reached and missed - reached > 1:
        middle = (reached + missed) // 2
        if attainment(middle) >= target:
            reached = middle
        else:
            missed = middle
    return reached
