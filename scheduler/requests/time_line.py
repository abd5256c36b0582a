"""What happened to a request, as spans that follow each other: for its page, and for its trace.

Pure: times are arguments, on trio's clock. A token costs one comparison; a span is made when the phase
changes, and for each prefill chunk. Writing never raises: it is done where all streams of an engine are
routed. A usual request has five spans; at most MOST_SPANS are kept, 12 kB. Beyond, neighbours of one phase
are joined, so that a prompt of a thousand chunks is shown in coarser ones.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from enum import StrEnum
from functools import wraps
from typing import Concatenate, ParamSpec

MOST_SPANS = 64


class Phase(StrEnum):
    QUEUE = "queue"
    """Tokenizing, and the fair queue."""
    SUBMITTED = "submitted"
    """Sent to an engine that has not said anything of it yet: the start of what comes next."""
    WAITING = "waiting"
    """In an engine, without a slot."""
    PREFILL = "prefill"
    DECODE = "decode"
    PREEMPTED = "preempted"
    AWAITING_ENGINE = "awaiting_engine"
    """Its engine died; the next one resumes it."""
    RESUMED = "resumed"
    """Prefilled again after one of these two, until its next token."""


@dataclass(frozen=True, slots=True)
class Span:
    """`waits_for`: of a waiting one. `chunks`, `tokens`: prefill chunks that ended in it, and the prompt
    tokens computed by them."""

    phase: Phase
    start: float
    end: float
    waits_for: str = ""
    engine: str = ""
    chunks: int = 0
    tokens: int = 0


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
        self.phase = Phase.QUEUE
        self.waits_for = ""
        """Why it has no slot, while the phase is WAITING."""
        self.failure: Exception | None = None
        """What writing it raised; since then nothing is added. It is reported when the request is over."""
        self._since = arrived_at
        self._engine = ""
        self._ended: list[Span] = []
        self._computed = 0
        """Prompt tokens computed in this engine since it last got a slot."""
        self._again = False
        """Whether it is computed for the second time."""

    @_contained
    def submitted(self, now: float, engine: str) -> None:
        self._begin(Phase.SUBMITTED, now)
        self._engine = engine
        self._computed = 0

    @_contained
    def waits(self, reason: str, since: float) -> None:
        """It has no slot, for this reason."""
        if reason == "preempted":
            self._again, self._computed = True, 0
            self._begin(Phase.PREEMPTED, since)
        else:
            self._begin(Phase.WAITING, since, reason)

    @_contained
    def has_slot(self, since: float) -> None:
        """It waited for one."""
        self._begin(self._prefill, since)

    @_contained
    def chunk(self, now: float, computed_tokens: int) -> None:
        """Another chunk of the prompt is computed, `computed_tokens` of it in all without the prefix hit."""
        if self.phase is not self._prefill:
            self._begin(self._prefill, now)
        tokens = max(0, computed_tokens - self._computed)
        self._computed += tokens
        self._end(now, chunks=1, tokens=tokens)

    @_contained
    def decode(self, now: float) -> None:
        """The first token since it was prefilled."""
        if self.phase is Phase.SUBMITTED:
            self.phase = self._prefill
        self._begin(Phase.DECODE, now)
        self._again = False

    @_contained
    def lost(self, now: float) -> None:
        """Its engine died."""
        self._again = True
        self._begin(Phase.AWAITING_ENGINE, now)

    def check(self) -> None:
        """Raise what writing it raised."""
        if self.failure is not None:
            raise self.failure

    def spans(self, now: float) -> tuple[Span, ...]:
        """Return what was until `now`, the oldest first."""
        return (*self._ended, self._span(now))

    @property
    def _prefill(self) -> Phase:
        return Phase.RESUMED if self._again else Phase.PREFILL

    def _begin(self, phase: Phase, now: float, waits_for: str = "") -> None:
        if self.phase is not Phase.SUBMITTED or phase not in _FOLLOW_SUBMITTED:
            self._end(now)
        self.phase, self.waits_for = phase, waits_for

    def _end(self, now: float, chunks: int = 0, tokens: int = 0) -> None:
        """End the span that is open; one of the same phase begins there."""
        span = self._span(now, chunks, tokens)
        self._since = span.end
        last = self._ended[-1] if self._ended and not chunks else None
        if last is not None and (last.phase, last.waits_for) == (span.phase, span.waits_for):
            # Behind the last chunk: the prompt's last token, which is computed with the rows that decode.
            self._ended[-1] = _joined(last, span)
            return
        if chunks or span.end > span.start or span.phase is Phase.QUEUE:
            self._ended.append(span)
        if len(self._ended) >= MOST_SPANS:
            self._ended = _coarser(self._ended)

    def _span(self, now: float, chunks: int = 0, tokens: int = 0) -> Span:
        # The engine's times have a clock of their own, and come with the step's output.
        end = max(now, self._since)
        return Span(self.phase, self._since, end, self.waits_for, self._engine, chunks, tokens)


_FOLLOW_SUBMITTED = (Phase.WAITING, Phase.PREFILL, Phase.RESUMED)
"""Say what a request has been doing since it was submitted."""


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
    """Return fewer spans of the same time: pairs of one phase joined, or else the two oldest ones behind the
    queue."""
    found: list[Span] = []
    pairable = False
    for span in spans:
        if pairable and span.phase is found[-1].phase:
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
