"""How long one population's arrival stalls another's streams, as a very long prompt does."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import pairwise

from loadtests.figures import Figure
from loadtests.percentiles import median
from loadtests.record import RequestRecord, RunRecord


@dataclass(frozen=True, slots=True)
class Stall:
    """Streams of `decoding` while `arriving` waits for its first token."""

    decoding: str
    arriving: str
    median_before: float
    """Seconds between deltas before the other population's first request."""
    largest_during: float
    """Seconds between deltas, of the gaps that overlap any wait for a first token."""
    ratio: float | None


Interval = tuple[float, float]


def stalls(run: RunRecord) -> list[Stall]:
    """Return a stall for each population that decoded before another arrived, and while that one waited."""
    by_population: defaultdict[str, list[RequestRecord]] = defaultdict(list)
    for request in run.requests:
        by_population[request.population].append(request)
    found = []
    for decoding, streams in sorted(by_population.items()):
        intervals = [gap for request in streams for gap in pairwise(request.stamps)]
        for arriving, requests in sorted(by_population.items()):
            if arriving != decoding:
                stall = _stall(decoding, intervals, arriving, waits(requests))
                found += [stall] if stall else []
    return found


def waits(requests: Iterable[RequestRecord]) -> list[Interval]:
    """Return the time from each send to the first delta, or to the end without one; overlapping ones are
    joined."""
    joined: list[Interval] = []
    for start, end in sorted((r.sent_at, r.stamps[0] if r.stamps else r.ended_at) for r in requests):
        if joined and start <= joined[-1][1]:
            joined[-1] = (joined[-1][0], max(joined[-1][1], end))
        else:
            joined.append((start, end))
    return joined


def _stall(decoding: str, intervals: list[Interval], arriving: str, waiting: list[Interval]) -> Stall | None:
    first = waiting[0][0]
    before = median(end - start for start, end in intervals if end <= first)
    during = max((end - start for start, end in intervals if _overlaps(waiting, start, end)), default=None)
    if before is None or during is None:
        return None
    return Stall(decoding, arriving, before, during, during / before if before > 0 else None)


def _overlaps(waiting: list[Interval], start: float, end: float) -> bool:
    return any(start < wait_end and end > wait_start for wait_start, wait_end in waiting)


def stall_figures(found: Iterable[Stall]) -> list[Figure]:
    figures = []
    for stall in found:
        pair = f"{stall.decoding}, {stall.arriving} waiting"
        key = f"{stall.decoding}<{stall.arriving}"
        for name, label, value, unit, formula in (
            (
                "gap_before",
                "Gap before",
                stall.median_before,
                "s",
                "median gap between deltas of the decoding"
                " population, before the arriving population's first request",
            ),
            (
                "gap_during",
                "Largest gap during",
                stall.largest_during,
                "s",
                "largest gap between deltas of the"
                " decoding population that overlaps the arriving population's waits for a first delta",
            ),
            ("stall_ratio", "Stall ratio", stall.ratio, "ratio", "largest gap during / median gap before"),
        ):
            figures.append(Figure(f"{name}[{key}]", f"{label} ({pair})", value, unit, formula, "less", label))
    return figures
