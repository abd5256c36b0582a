"""What happened to a request, as spans that follow each other: for its page.

Pure: times are arguments, on trio's clock. A span is made when the request's state changes, and for each
prefill chunk; a token costs nothing. Writing never raises: it is done where all streams of an engine are
routed. A usual request has five spans; at most MOST_SPANS are kept, 12 kB. Beyond, neighbours of one phase
are joined, so that a prompt of a thousand chunks is shown in coarser ones.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import wraps
from typing import Concatenate, ParamSpec

from scheduler.requests.lifecycle import State
from scheduler.statistics import Span

MOST_SPANS = 64
RESUMED = "resumed"
"""The phase of a prefill after a preemption or an engine's death, until the next token."""


_P = ParamSpec("_P")


def _contained(
    write: Callable[Concatenate[TimeLine, _P], None],
) -> Callable[Concatenate[TimeLine, _P], None]:
    """Keep what `write` raises as the line's failure, and write no more to a line that has one."""

    @wraps(write)
    def contained(line: TimeLine, /, *args: _P.args, **options: _P.kwargs) -> None:
        if line.failure is None:
            try:
                write(line, *args, **options)
            except Exception as error:
                line.failure = error

    return contained


class TimeLine:
    """Each span begins where the last one ends."""

    def __init__(self, arrived_at: float) -> None:
        self.phase: str = State.QUEUED
        self.waits_for = ""
        """Why it has no slot, while it waits for one."""
        self.failure: Exception | None = None
        """What writing it raised; since then nothing is added. It is reported when the request is over."""
        self._since = arrived_at
        self._engine = ""
        self._ended: list[Span] = []
        self._computed = 0
        """Prompt tokens computed in this engine since it last got a slot."""
        self._again = False
        """Whether the prompt is computed again, after a preemption or an engine's death."""

    @_contained
    def enter(self, state: State, since: float, waits_for: str = "", engine: str | None = None) -> None:
        """Take note that the request has changed its state, or waits for something else, at `since`.
        `engine`: the engine that it was sent to."""
        phase: str = state
        match state:
            case State.PREEMPTED | State.AWAITING_ENGINE:
                self._again, self._computed = True, 0
            case State.PREFILLING if self._again:
                phase = RESUMED
            case State.DECODING if self.phase == State.SUBMITTED:
                self.phase = RESUMED if self._again else State.PREFILLING
        if self.phase != State.SUBMITTED or phase not in _FOLLOW_SUBMITTED:
            self._end(since)
        self.phase, self.waits_for = phase, waits_for
        if state is State.DECODING:
            self._again = False
        if engine is not None:
            self._engine, self._computed = engine, 0

    @_contained
    def chunk(self, now: float, computed_tokens: int) -> None:
        """Take note of another prefill chunk: `computed_tokens` of the prompt are computed in all, without
        the prefix hit."""
        tokens = max(0, computed_tokens - self._computed)
        self._computed += tokens
        self._end(now, chunks=1, tokens=tokens)

    def check(self) -> None:
        """Raise what writing it raised."""
        if self.failure is not None:
            raise self.failure

    def spans(self, now: float) -> tuple[Span, ...]:
        """Return the spans until `now`, the oldest first."""
        return (*self._ended, self._span(now))

    def _end(self, now: float, chunks: int = 0, tokens: int = 0) -> None:
        """End the span that is open; one of the same phase begins there."""
        span = self._span(now, chunks, tokens)
        self._since = span.end
        last = self._ended[-1] if self._ended and not chunks else None
        if last is not None and (last.phase, last.waits_for) == (span.phase, span.waits_for):
            # What follows the last chunk is the prompt's last token, computed with the rows that decode.
            self._ended[-1] = _joined(last, span)
            return
        if chunks or span.end > span.start or span.phase == State.QUEUED:
            self._ended.append(span)
        if len(self._ended) >= MOST_SPANS:
            self._ended = _coarser(self._ended)

    def _span(self, now: float, chunks: int = 0, tokens: int = 0) -> Span:
        # The engine's times have a clock of their own, and come with the step's output.
        end = max(now, self._since)
        return Span(self.phase, self._since, end, self.waits_for, self._engine, chunks, tokens)


_FOLLOW_SUBMITTED = (State.WAITING, State.PREFILLING, RESUMED)
"""Phases that say what a request has been doing since it was submitted: they replace that phase."""


def _joined(one: Span, other: Span) -> Span:
    """Return both neighbours as one span, which is named after the longer."""
    name = one if one.end - one.start >= other.end - other.start else other
    return Span(
        name.phase,
        one.start,
        other.end,
        name.waits_for,
        name.engine,
        one.chunks + other.chunks,
        one.tokens + other.tokens,
    )


def _coarser(spans: list[Span]) -> list[Span]:
    """Return fewer spans of the same time: pairs of one phase joined, or else the two oldest ones after the
    first, which is the queue's."""
    found: list[Span] = []
    pairable = False
    for span in spans:
        if pairable and span.phase == found[-1].phase:
            found[-1] = _joined(found[-1], span)
            pairable = False
        else:
            found.append(span)
            pairable = True
    return found if len(found) < len(spans) else [spans[0], _joined(spans[1], spans[2]), *spans[3:]]


def phases(spans: Iterable[Span]) -> list[Span]:
    """Return neighbours of one phase and reason as one span: without single chunks."""
    found: list[Span] = []
    for span in spans:
        if found and (found[-1].phase, found[-1].waits_for) == (span.phase, span.waits_for):
            found[-1] = _joined(found[-1], span)
        else:
            found.append(span)
    return found
