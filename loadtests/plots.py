"""The report's plots: TTFT and gaps over time, as SVG in the page's own colours."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from html import escape
from math import ceil, floor, log10

from loadtests.figures import gaps, ttft, written
from loadtests.pairs import Column
from loadtests.record import Outcome, RunRecord

COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#5b4fa2", "#6b6b6b")
"""The palette of Okabe and Ito, distinguishable for colour-blind readers; one colour a population."""
SHORTEST = 0.000_1
"""Shorter times are drawn here: deltas from one read have no measurable time between them."""
MOST_POINTS = 4_000
_WIDTH, _LEFT, _TOP, _FLOOR, _HEIGHT = 640, 56, 8, 206, 240
CAPTION = (
    "A point each; a cross on the upper edge is a request that failed or was refused. Grey: warm-up and tail,"
    " which are not measured."
)


@dataclass(frozen=True, slots=True)
class Event:
    population: str
    at: float
    seconds: float


@dataclass(frozen=True, slots=True)
class Plot:
    title: str
    svg: str


def plots(columns: Sequence[Column]) -> Iterator[Plot]:
    """Yield two plots a target, of its first round that is not void."""
    for column in columns:
        run = column.shown[0].run
        waits = [Event(r.population, r.sent_at, s) for r in run.requests if (s := ttft(r)) is not None]
        silences = [
            Event(r.population, at, gap)
            for r in run.requests
            for at, gap in zip(r.stamps[1:], gaps(r), strict=True)
        ]
        failed = [r.sent_at for r in run.requests if r.outcome is not Outcome.OK]
        for name, events, crosses in (("TTFT", waits, failed), ("gaps between tokens", silences, [])):
            if events or crosses:
                svg = "".join(_drawn(run, events, crosses[:MOST_POINTS]))
                title = f"{column.label}: {name} over time"
                yield Plot(title, f'<svg viewBox="0 0 {_WIDTH + 16} {_HEIGHT}">{svg}</svg>')


def _drawn(run: RunRecord, events: Sequence[Event], failed: Sequence[float]) -> Iterator[str]:
    seconds = [max(event.seconds, SHORTEST) for event in events] or [1.0]
    least, most = floor(log10(min(seconds))), max(ceil(log10(max(seconds))), floor(log10(min(seconds))) + 1)

    def x(at: float) -> float:
        return _LEFT + at / max(run.ended_at, 1e-9) * (_WIDTH - _LEFT)

    def y(time: float) -> float:
        return _FLOOR - (log10(max(time, SHORTEST)) - least) / (most - least) * (_FLOOR - _TOP)

    for start, end in ((0.0, run.warm_up_seconds), (run.steady_until, run.ended_at)):
        size = f'width="{max(0.0, x(end) - x(start)):.1f}" height="{_FLOOR - _TOP}"'
        yield f'<rect x="{x(start):.1f}" y="{_TOP}" {size} class="out"/>'
    for decade in range(least, most + 1):
        at, text = y(10.0**decade), written(10.0**decade, "s")
        yield f'<path d="M{_LEFT} {at:.1f}H{_WIDTH}" class="line"/>'
        yield f'<text x="{_LEFT - 4}" y="{at + 4:.1f}" text-anchor="end">{text}</text>'
    yield f'<text x="{_WIDTH}" y="{_FLOOR + 14}" text-anchor="end">{run.ended_at:.0f} s</text>'
    populations = sorted({event.population for event in events})
    # The longest are what a reader looks for: of the others some are drawn.
    step = -(-len(events) // MOST_POINTS) or 1
    longest = sorted(events, key=lambda event: -event.seconds)[: MOST_POINTS // 4]
    for event in (*events[::step], *(longest if step > 1 else ())):
        colour = COLOURS[populations.index(event.population) % len(COLOURS)]
        yield f'<circle cx="{x(event.at):.1f}" cy="{y(event.seconds):.1f}" r="2" fill="{colour}"/>'
    yield from (f'<text x="{x(at):.1f}" y="{_TOP + 2}" class="bad">×</text>' for at in failed)
    names = (
        f'<tspan fill="{COLOURS[number % len(COLOURS)]}">● </tspan>{escape(name)}&#160;&#160; '
        for number, name in enumerate(populations)
    )
    yield f'<text x="{_LEFT}" y="{_HEIGHT - 4}">{"".join(names)}</text>'
