"""Every figure of one run, computed from its record alone, beside its formula; and how values are written."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from math import floor
from typing import Literal, TypeAlias

from loadtests.record import Outcome, RequestRecord, RunRecord

QUANTILES = {"p50": 0.5, "p95": 0.95, "p99": 0.99, "max": 1.0}
Better: TypeAlias = Literal["less", "more", "none"]
COUNTED = (
    "Counted requests: those of measured populations sent from the end of the warm-up to the end of the"
    " steady state. The window is the time between the two, or until the run ended, if that was earlier."
    " Percentiles are taken over all samples (linear interpolation between order statistics, numpy's"
    " default)."
)


def percentile(ordered: Sequence[float], share: float) -> float:
    """Return the percentile of at least one sample in ascending order; `share` is from 0 to 1."""
    place = share * (len(ordered) - 1)
    below = floor(place)
    least, most = ordered[below], ordered[min(below + 1, len(ordered) - 1)]
    # One formula for the whole segment, and clamped, so that rounding never puts p95 below p50.
    return min(most, least + (most - least) * (place - below))


@dataclass(frozen=True, slots=True)
class Window:
    """One run, or one of its populations, within its measured time."""

    start: float
    end: float
    ttft_slo: float
    tpot_slo: float
    sent: tuple[RequestRecord, ...]
    """The counted requests."""
    around: tuple[RequestRecord, ...]
    """The same populations' requests, whenever sent: their tokens may arrive inside the window."""

    def rate(self, amount: float) -> float | None:
        return amount / (self.end - self.start) if self.end > self.start else None

    def answered(self) -> list[RequestRecord]:
        """Return the requests that were answered to their end inside the window, whenever sent."""
        return [r for r in self.around if r.outcome is Outcome.OK and self.start <= r.ended_at <= self.end]

    def good(self) -> int:
        """Return how many are within both SLOs. Answers of one token or in one piece have no TPOT to miss."""
        return sum(
            r.outcome is Outcome.OK
            and (first := ttft(r)) is not None
            and first <= self.ttft_slo
            and (tpot(r) or 0.0) <= self.tpot_slo
            for r in self.sent
        )

    def sessions(self) -> list[list[RequestRecord]]:
        """Return the requests of each session whose first request counts, in order of sending."""
        by_name: defaultdict[str, list[RequestRecord]] = defaultdict(list)
        for request in sorted(self.around, key=lambda request: request.sent_at):
            by_name[request.session].append(request)
        counted = {request.index for request in self.sent}
        return [requests for requests in by_name.values() if requests[0].index in counted]


def window(run: RunRecord, population: str | None = None) -> Window:
    """Return the window over this population, or over all measured ones."""
    start, end = run.warm_up_seconds, min(run.steady_until, run.ended_at)
    around = tuple(
        request
        for request in run.requests
        if (request.population == population if population else request.population not in run.unmeasured)
    )
    sent = tuple(request for request in around if start <= request.sent_at <= end)
    return Window(start, end, run.ttft_slo_seconds, run.tpot_slo_seconds, sent, around)


# --- of one request


def ttft(request: RequestRecord) -> float | None:
    return request.stamps[0] - request.sent_at if request.stamps else None


def gaps(request: RequestRecord) -> list[float]:
    return [after - before for before, after in pairwise(request.stamps)]


def output_tokens(request: RequestRecord) -> int:
    """Return the server's count, or one token a delta if it reported none (a cut stream, a peer without
    usage)."""
    return len(request.stamps) if request.output_tokens is None else request.output_tokens


def tpot(request: RequestRecord) -> float | None:
    """Return the time per output token, or None if there is none between tokens: one token, or one delta."""
    tokens = output_tokens(request)
    if tokens < 2 or len(request.stamps) < 2:
        return None
    return (request.stamps[-1] - request.stamps[0]) / (tokens - 1)


def tokens_within(request: RequestRecord, start: float, end: float) -> float:
    """Return the output tokens that arrived from `start` to `end`; a request's tokens count as evenly spread
    over its timestamps."""
    if not request.stamps:
        return 0.0
    inside = bisect_right(request.stamps, end) - bisect_left(request.stamps, start)
    return output_tokens(request) * inside / len(request.stamps)


def _silences(request: RequestRecord) -> list[float]:
    """Return the gaps, and the one from the last delta to the end of a broken stream."""
    broken = request.outcome in (Outcome.TIMED_OUT, Outcome.UNFINISHED, Outcome.CUT)
    return [*gaps(request), *([request.ended_at - request.stamps[-1]] if request.stamps and broken else [])]


def _is_complete(session: Sequence[RequestRecord]) -> bool:
    """Return whether every request was answered, and the last turn was reached if the record has it."""
    last = max(request.turn for request in session)
    planned = max((request.session_turns or 0 for request in session), default=0)
    return all(request.outcome is Outcome.OK for request in session) and last >= planned


# --- of a window


def _each(view: Window, of: Callable[[RequestRecord], float | None], ok: bool = False) -> list[float]:
    found = (of(r) for r in view.sent if not ok or r.outcome is Outcome.OK)
    return [value for value in found if value is not None]


def _share(view: Window, tokens: Callable[[RequestRecord], float]) -> float | None:
    """Return the share of all prompt tokens, over the requests that report prompt and cached tokens."""
    known = [r for r in view.sent if r.prompt_tokens is not None and r.cached_tokens is not None]
    prompts = sum(request.prompt_tokens or 0 for request in known)
    return sum(map(tokens, known)) / prompts if prompts else None


def _cached(request: RequestRecord) -> float:
    """Return the cached tokens, at most the prompt's, in case a server reports more."""
    return min(max(request.cached_tokens or 0, 0), request.prompt_tokens or 0)


def _count(view: Window, *outcomes: Outcome) -> int:
    return sum(request.outcome in outcomes for request in view.sent)


@dataclass(frozen=True, slots=True)
class Figure:
    """`value` returns None if the run has no samples for it."""

    label: str
    unit: str
    """s, 1/s, tokens/s, share, requests, index, ratio."""
    better: Better
    formula: str
    value: Callable[[Window], float | None]


@dataclass(frozen=True, slots=True)
class Family:
    """Samples of which all percentiles are figures."""

    label: str
    formula: str
    samples: Callable[[Window], list[float]]


FAMILIES: Mapping[str, Family] = {
    "ttft": Family(
        "TTFT",
        "first delta with content, reasoning or a tool call − sent; one sample a request that got one",
        lambda view: _each(view, ttft),
    ),
    "itl": Family(
        "ITL",
        "delta − the delta before it; one sample a gap, tokens sent in one delta have no gap between them",
        lambda view: [gap for request in view.sent for gap in gaps(request)],
    ),
    "tpot": Family(
        "TPOT",
        "(last delta − first delta) / (output tokens − 1); one sample a request answered to its end",
        lambda view: _each(view, tpot, ok=True),
    ),
    "e2e": Family(
        "E2E",
        "end of the answer − sent; one sample a request answered to its end",
        lambda view: _each(view, lambda request: request.ended_at - request.sent_at, ok=True),
    ),
    "session": Family(
        "Session",
        "end of a session's last answer − its first send; one sample a session that began inside the window"
        " and of which every request was answered to its end",
        lambda view: [
            max(request.ended_at for request in session) - session[0].sent_at
            for session in view.sessions()
            if _is_complete(session)
        ],
    ),
}
SINGLES: dict[str, Figure] = {
    "output_tokens_per_second": Figure(
        "Output tokens/s",
        "tokens/s",
        "more",
        "output tokens that arrived inside the window / its seconds (tokens as the server counts, spread"
        " evenly over the request's deltas)",
        lambda view: view.rate(sum(tokens_within(r, view.start, view.end) for r in view.around)),
    ),
    "requests_per_second": Figure(
        "Requests/s",
        "1/s",
        "more",
        "requests answered to their end inside the window / its seconds",
        lambda view: view.rate(len(view.answered())),
    ),
    "goodput": Figure(
        "Goodput", "1/s", "more", "good requests / the window's seconds", lambda view: view.rate(view.good())
    ),
    "slo_attainment": Figure(
        "SLO attainment",
        "share",
        "more",
        "good requests / counted requests; good: answered to its end, TTFT and TPOT within their SLOs",
        lambda view: view.good() / len(view.sent) if view.sent else None,
    ),
    "cached_share": Figure(
        "Cached share",
        "share",
        "more",
        "Σ cached tokens / Σ prompt tokens, over counted requests that report both",
        lambda view: _share(view, _cached),
    ),
    "cached_share_most": Figure(
        "Cached share, at most",
        "share",
        "none",
        "the same of what a cache without bounds could have served",
        lambda view: _share(view, lambda one: one.reusable_share * (one.prompt_tokens or 0)),
    ),
    "max_stall": Figure(
        "Max stall",
        "s",
        "less",
        "the longest silence inside one counted stream: between two deltas, or up to its break",
        lambda view: max((one for r in view.sent for one in _silences(r)), default=None),
    ),
    "sent": Figure("Requests sent", "requests", "none", "counted requests", lambda view: len(view.sent)),
    "ok": Figure(
        "– answered", "requests", "none", "answered to their end", lambda view: _count(view, Outcome.OK)
    ),
    "refused": Figure(
        "– refused",
        "requests",
        "none",
        "answered with 429 or 503 before anything was streamed",
        lambda view: _count(view, Outcome.REFUSED),
    ),
    "failed": Figure(
        "– failed",
        "requests",
        "less",
        "ended otherwise: an HTTP error, an error inside the stream, cut, no connection, unfinished",
        lambda view: len(view.sent) - _count(view, Outcome.OK, Outcome.REFUSED),
    ),
}


def _quantile(family: Family, share: float) -> Callable[[Window], float | None]:
    def value(view: Window) -> float | None:
        ordered = sorted(family.samples(view))
        return percentile(ordered, share) if ordered else None

    return value


FIGURES: dict[str, Figure] = {
    f"{name}_{quantile}": Figure(
        f"{family.label} {quantile}", "s", "less", family.formula, _quantile(family, share)
    )
    for name, family in FAMILIES.items()
    for quantile, share in QUANTILES.items()
} | SINGLES
"""By names that do not change: scripts ask for them."""


@dataclass(frozen=True, slots=True)
class Measures:
    """All figures of one run."""

    run: RunRecord
    values: Mapping[str, float | None]
    by_population: Mapping[str, Mapping[str, float | None]]
    """Includes unmeasured populations: a flood's own latency is worth reporting."""


def measure(run: RunRecord) -> Measures:
    populations = sorted({request.population for request in run.requests})
    return Measures(run, _values(window(run)), {name: _values(window(run, name)) for name in populations})


def _values(view: Window) -> dict[str, float | None]:
    return {name: figure.value(view) for name, figure in FIGURES.items()}


# --- as text


def written(value: float | None, unit: str) -> str:
    """Return the value with its unit, to three digits; a dash for None."""
    if value is None:
        return "–"
    scale, shown = _scale(value, unit)
    return f"{_digits(value * scale, unit)}{shown}"


def written_range(middle: float, least: float, most: float, unit: str) -> str:
    """Return `209 (206–213) tokens/s`: one unit for all three."""
    scale, shown = _scale(middle, unit)
    span = "–".join(_digits(end * scale, unit) for end in (least, most))
    return f"{_digits(middle * scale, unit)} ({span}){shown}"


def _scale(value: float, unit: str) -> tuple[float, str]:
    match unit:
        case "s":
            return (1000, " ms") if abs(value) < 0.9995 else (1, " s")
        case "share":
            return 100, " %"
        case "ratio":
            return 1, "×"
        case _:  # The figure's label has the others.
            return 1, ""


def _digits(value: float, unit: str) -> str:
    """Return three significant digits, never an exponent."""
    size = abs(value)
    if size >= 99.95 or unit in ("requests", "tokens"):
        return f"{value:,.0f}".replace(",", "\u202f")
    if unit in ("share", "index"):
        return f"{value:.1f}" if unit == "share" else f"{value:.3f}"
    return f"{value:.1f}" if size >= 9.995 else f"{value:.2f}"
