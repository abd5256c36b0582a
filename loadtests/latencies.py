"""The figures that are percentiles: the samples of each family, and the formula of one sample."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from loadtests.record import Outcome, RequestRecord
from loadtests.window import Window, complete, gaps, tpot, ttft


@dataclass(frozen=True, slots=True)
class Family:
    """Samples whose percentiles are all figures."""

    name: str
    label: str
    formula: str
    samples: Callable[[Window], list[float]]


def each(view: Window, of: Callable[[RequestRecord], float | None], ok: bool = False) -> list[float]:
    return [
        value
        for request in view.sent
        if (not ok or request.outcome is Outcome.OK) and (value := of(request)) is not None
    ]


FAMILIES = (
    Family(
        "ttft",
        "TTFT",
        "first delta with content, reasoning or a tool call − sent; one sample a counted request that"
        " got one",
        lambda view: each(view, ttft),
    ),
    Family(
        "itl",
        "ITL",
        "delta − the delta before it; one sample a gap of the counted requests, tokens sent in one delta have"
        " no gap between them",
        lambda view: [gap for request in view.sent for gap in gaps(request)],
    ),
    Family(
        "tpot",
        "TPOT",
        "(last delta − first delta) / (output tokens − 1); one sample a counted request answered to its end,"
        " one-token and one-delta answers excluded",
        lambda view: each(view, tpot, ok=True),
    ),
    Family(
        "e2e",
        "E2E",
        "end of the answer − sent; one sample a counted request answered to its end",
        lambda view: each(view, lambda request: request.ended_at - request.sent_at, ok=True),
    ),
    Family(
        "session",
        "Session",
        "end of a session's last answer − its first send, gaps and subagents included; one sample a session"
        " that began inside the window and of which every request was answered to its end",
        lambda view: [
            max(request.ended_at for request in session) - session[0].sent_at
            for session in view.sessions()
            if complete(session)
        ],
    ),
    Family(
        "abort",
        "Abort latency",
        "from the client's hang-up until the target's own metrics count it as gone; one sample a counted"
        " request that hung up, where the target reports it",
        lambda view: each(view, lambda request: request.freed_after_seconds),
    ),
)
