"""Select the requests of a run that count, and compute what one request's timestamps give. All figures use
it."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import defaultdict
from dataclasses import dataclass
from itertools import pairwise

from loadtests.record import Outcome, RequestRecord, RunRecord

COUNTED = (
    "Counted requests: those of measured populations sent from the end of the warm-up to the end of the"
    " steady state. The window is the time between the two, or until the run ended, if that was earlier."
    " Percentiles are taken over all samples (linear interpolation between order statistics, numpy's"
    " default)."
)


@dataclass(frozen=True, slots=True)
class Window:
    """One run, or some of its populations, within its measured window."""

    start: float
    end: float
    ttft_slo: float
    tpot_slo: float
    sent: tuple[RequestRecord, ...]
    """The counted requests."""
    around: tuple[RequestRecord, ...]
    """The same populations' requests, whenever sent: their tokens may arrive inside the window."""

    @property
    def seconds(self) -> float:
        return max(0.0, self.end - self.start)

    def holds(self, moment: float) -> bool:
        return self.start <= moment <= self.end

    def rate(self, amount: float) -> float | None:
        return amount / self.seconds if self.seconds > 0 else None

    def good(self, request: RequestRecord) -> bool:
        """Return whether it is within both SLOs. One-token answers and answers in one piece have no TPOT to
        miss."""
        first, pace = ttft(request), tpot(request)
        return (
            request.outcome is Outcome.OK
            and request.correct is not False
            and first is not None
            and first <= self.ttft_slo
            and (pace is None or pace <= self.tpot_slo)
        )

    def sessions(self) -> list[list[RequestRecord]]:
        """Return the requests of each session whose first request counts, in order of sending."""
        by_name: defaultdict[str, list[RequestRecord]] = defaultdict(list)
        for request in sorted(self.around, key=lambda request: request.sent_at):
            by_name[request.session].append(request)
        counted = {request.index for request in self.sent}
        return [requests for requests in by_name.values() if requests[0].index in counted]


def window(run: RunRecord, populations: frozenset[str] | None = None) -> Window:
    """Return the window over these populations, or over all measured ones."""
    start, end = run.warm_up_seconds, min(run.steady_until, run.ended_at)
    unmeasured = frozenset(run.unmeasured)
    around = tuple(
        request
        for request in run.requests
        if (request.population in populations if populations else request.population not in unmeasured)
    )
    return Window(
        start=start,
        end=end,
        ttft_slo=run.ttft_slo_seconds,
        tpot_slo=run.tpot_slo_seconds,
        sent=tuple(request for request in around if start <= request.sent_at <= end),
        around=around,
    )


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


def longest_silence(request: RequestRecord) -> float | None:
    """Return the longest gap between two deltas, or from the last delta to the end of a broken stream."""
    silences = gaps(request)
    if request.stamps and request.outcome in (Outcome.TIMED_OUT, Outcome.UNFINISHED, Outcome.CUT):
        silences.append(request.ended_at - request.stamps[-1])
    return max(silences, default=None)


def complete(session: list[RequestRecord]) -> bool:
    """Return whether every request was answered, and the last turn was reached if the record has it."""
    last = max(request.turn for request in session)
    planned = max((request.session_turns or 0 for request in session), default=0)
    return all(request.outcome is Outcome.OK for request in session) and last >= planned
