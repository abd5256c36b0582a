"""The figures that are one number a run, rates, shares, indices and counts, with their formulas."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable
from dataclasses import dataclass

from loadtests.figures import Better
from loadtests.latencies import each
from loadtests.percentiles import jain, mean
from loadtests.record import Outcome, RequestRecord
from loadtests.window import Window, longest_silence, output_tokens, tokens_within, ttft


@dataclass(frozen=True, slots=True)
class Single:
    name: str
    label: str
    unit: str
    better: Better
    formula: str
    value: Callable[[Window], float | None]


def _answered(view: Window) -> list[RequestRecord]:
    """Return the requests that were answered to their end inside the window, whenever sent."""
    return [r for r in view.around if r.outcome is Outcome.OK and view.holds(r.ended_at)]


def _turns(view: Window) -> float | None:
    turns = Counter(request.session for request in view.around)
    of_sessions = [request for request in _answered(view) if turns[request.session] > 1]
    return view.rate(len(of_sessions)) if max(turns.values(), default=0) > 1 else None


def _output(view: Window) -> float:
    return sum(tokens_within(request, view.start, view.end) for request in view.around)


def _total(view: Window) -> float | None:
    started = [r for r in view.around if r.stamps and view.holds(r.stamps[0])]
    if any(request.prompt_tokens is None for request in started):
        return None
    return view.rate(_output(view) + sum(request.prompt_tokens or 0 for request in started))


def _good(view: Window) -> int:
    return sum(view.good(request) for request in view.sent)


def _attainment(view: Window) -> float | None:
    asked = sum(request.outcome is not Outcome.HUNG_UP for request in view.sent)
    return _good(view) / asked if asked else None


def _cached(request: RequestRecord) -> int:
    """Return the cached tokens, at most the prompt's, in case a server reports more."""
    return min(max(request.cached_tokens or 0, 0), request.prompt_tokens or 0)


def _share(
    view: Window, part: Callable[[RequestRecord], float], is_known: Callable[[RequestRecord], bool]
) -> float | None:
    requests = [r for r in view.sent if r.prompt_tokens is not None and is_known(r)]
    prompts = sum(request.prompt_tokens or 0 for request in requests)
    return sum(map(part, requests)) / prompts if prompts > 0 else None


def _reusable(request: RequestRecord) -> float:
    return min(max(request.reusable_share, 0.0), 1.0) * (request.prompt_tokens or 0)


def _reports_cached(request: RequestRecord) -> bool:
    return request.cached_tokens is not None


def _cached_most(view: Window) -> float | None:
    """Return the share over the same requests as the cached share, so that the two compare."""
    silent = not any(map(_reports_cached, view.sent))
    return _share(view, _reusable, lambda request: silent or _reports_cached(request))


def _again(view: Window) -> float | None:
    known = [r for r in view.sent if r.prompt_tokens is not None and _reports_cached(r)]
    return sum(max(0.0, _reusable(r) - _cached(r)) for r in known) if known else None


def _by_tenant(view: Window) -> dict[str, list[RequestRecord]]:
    tenants: defaultdict[str, list[RequestRecord]] = defaultdict(list)
    for request in view.sent:
        tenants[request.tenant].append(request)
    return tenants


def _fair_tokens(view: Window) -> float | None:
    tenants = _by_tenant(view)
    received = [float(sum(map(output_tokens, requests))) for requests in tenants.values()]
    return jain(received) if len(received) > 1 else None


def _fair_ttft(view: Window) -> float | None:
    means = [
        mean([t for r in requests if (t := ttft(r)) is not None]) for requests in _by_tenant(view).values()
    ]
    known = [value for value in means if value is not None]
    return jain(known) if len(known) > 1 else None


def _count(*outcomes: Outcome) -> Callable[[Window], float | None]:
    return lambda view: sum(request.outcome in outcomes for request in view.sent)


FAILED = (
    Outcome.HTTP_ERROR,
    Outcome.STREAM_ERROR,
    Outcome.CUT,
    Outcome.CONNECT_FAILED,
    Outcome.TIMED_OUT,
    Outcome.UNFINISHED,
)

SINGLES = (
    Single(
        "output_tokens_per_second",
        "Output tokens/s",
        "tokens/s",
        "more",
        "output tokens that arrived inside the window / its seconds (tokens as the server counts, deltas"
        " where it does not; a request's tokens spread evenly over its deltas)",
        lambda view: view.rate(_output(view)),
    ),
    Single(
        "total_tokens_per_second",
        "Total tokens/s",
        "tokens/s",
        "more",
        "(output tokens as above + prompt tokens, cached ones too, of requests whose first delta arrived"
        " inside the window) / its seconds",
        _total,
    ),
    Single(
        "requests_per_second",
        "Requests/s",
        "1/s",
        "more",
        "requests answered to their end inside the window / its seconds",
        lambda view: view.rate(len(_answered(view))),
    ),
    Single(
        "turns_per_second",
        "Turns/s",
        "1/s",
        "more",
        "the same, of sessions with more than one turn",
        _turns,
    ),
    Single(
        "goodput",
        "Goodput",
        "1/s",
        "more",
        "good requests / the window's seconds; good: counted, answered to its end, not known to be wrong,"
        " TTFT ≤ its SLO and TPOT ≤ its SLO",
        lambda view: view.rate(_good(view)),
    ),
    Single(
        "slo_attainment",
        "SLO attainment",
        "share",
        "more",
        "good requests / counted requests sent, failed and refused ones included; those that hung up are left"
        " out, because the scenario wanted them to leave",
        _attainment,
    ),
    Single(
        "cached_share",
        "Cached share",
        "share",
        "more",
        "Σ cached tokens / Σ prompt tokens, over counted requests that report both",
        lambda view: _share(view, _cached, _reports_cached),
    ),
    Single(
        "cached_share_most",
        "Cached share, at most",
        "share",
        "none",
        "Σ reusable share × prompt tokens / Σ prompt tokens, over the same requests (over all that report"
        " their prompt tokens, where none reports cached ones): what a cache without bounds could have"
        " served",
        _cached_most,
    ),
    Single(
        "prefilled_again",
        "Re-prefilled tokens",
        "tokens",
        "less",
        "Σ max(0, reusable share × prompt tokens − cached tokens), over counted requests that report both",
        _again,
    ),
    Single(
        "max_stall",
        "Max stall",
        "s",
        "less",
        "the longest silence inside one counted stream after its first delta: between two deltas, or up to"
        " the moment where it was cut, given up or left unfinished",
        lambda view: max(each(view, longest_silence), default=None),
    ),
    Single(
        "jain_tokens",
        "Jain index, tokens",
        "index",
        "more",
        "(Σx)² / (n·Σx²) over tenants, x: output tokens of its counted requests; 1 is even, 1/n where one"
        " takes all",
        _fair_tokens,
    ),
    Single(
        "jain_ttft",
        "Jain index, TTFT",
        "index",
        "more",
        "the same over tenants, x: the mean TTFT of its counted requests",
        _fair_ttft,
    ),
    Single("sent", "Requests sent", "requests", "none", "counted requests", lambda view: len(view.sent)),
    Single(
        "ok", "– answered", "requests", "none", "counted requests answered to their end", _count(Outcome.OK)
    ),
    Single(
        "hung_up",
        "– hung up",
        "requests",
        "none",
        "counted requests whose client left, as the scenario wanted",
        _count(Outcome.HUNG_UP),
    ),
    Single(
        "refused",
        "– refused",
        "requests",
        "none",
        "counted requests answered with 429 or 503 before anything was streamed",
        _count(Outcome.REFUSED),
    ),
    Single(
        "failed",
        "– failed",
        "requests",
        "less",
        "counted requests that ended otherwise: HTTP error, error inside the stream, stream cut, no"
        " connection, time-out, unfinished at the end",
        _count(*FAILED),
    ),
    Single(
        "wrong",
        "– wrong answers",
        "requests",
        "less",
        "counted requests whose answer is known to be wrong, where the scenario knows the right one",
        lambda view: (
            sum(r.correct is False for r in view.sent)
            if any(r.correct is not None for r in view.sent)
            else None
        ),
    ),
)
