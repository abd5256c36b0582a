"""One choice's events between the multiplexer and the reader: one writer, one reader.

A reader that falls behind gets larger pieces: neighbours of one kind are merged, and order is kept. `put`
never waits, so a slow client delays neither the engine nor another stream. The request's max_tokens bounds
the size.
"""

from __future__ import annotations

from collections import deque
from itertools import chain
from typing import assert_never

import trio

from scheduler.events import (
    AnswerPiece,
    FinalEvent,
    MalformedCall,
    Prefilling,
    ReasoningDelta,
    StreamEvent,
    TextDelta,
    ToolCallArguments,
    ToolCallStarted,
)

_MOST_WITH_LOGPROBS = 32
"""Bound on the pieces of a run that carry log-probabilities: with 20 alternatives a token is 2 KB of JSON,
and a run is encoded at once."""


class Doorbell:
    """Wakes the one reader of a mailbox, or of several."""

    def __init__(self) -> None:
        self._rung = trio.Event()

    def ring(self) -> None:
        self._rung.set()

    async def wait(self) -> None:
        """Wait until the next ring. There must be no checkpoint between the caller's check and this call."""
        self._rung = trio.Event()
        await self._rung.wait()


class Mailbox:
    """Holds at most one progress event, the pieces of the answer in runs of one kind, and one final event."""

    def __init__(self, doorbell: Doorbell | None = None) -> None:
        self._doorbell = doorbell or Doorbell()
        self._progress: Prefilling | None = None
        self._runs: deque[list[AnswerPiece]] = deque()
        self._final: FinalEvent | None = None
        self.ended = False
        """Whether the final event has been taken."""

    def put_progress(self, progress: Prefilling) -> None:
        self._progress = progress
        self._doorbell.ring()

    def put(self, piece: AnswerPiece) -> None:
        assert self._final is None, "a piece of the answer after the final event"
        if not _has_content(piece):
            return
        if self._runs and _joins(self._runs[-1], piece):
            self._runs[-1].append(piece)
        else:
            self._runs.append([piece])
        self._doorbell.ring()

    def put_final(self, event: FinalEvent) -> None:
        """Put the final event; call it exactly once."""
        assert self._final is None, "a second final event"
        self._final = event
        self._doorbell.ring()

    def take_nowait(self) -> StreamEvent | None:
        """Return the next event in order (progress, pieces, final), or None if there is none."""
        if self._runs:
            # Prefill progress is out of date once the answer has begun.
            self._progress = None
            return _merge(self._runs.popleft())
        if self._progress is not None:
            progress, self._progress = self._progress, None
            return progress
        if self._final is not None and not self.ended:
            self.ended = True
            return self._final
        return None


def _has_content(piece: AnswerPiece) -> bool:
    match piece:
        case ToolCallStarted() | MalformedCall():
            return True
        case TextDelta(text=text, logprobs=logprobs):
            # A token that is part of a character has log-probabilities and no text yet.
            return bool(text or logprobs)
        case _:
            return bool(piece.text)


def _joins(run: list[AnswerPiece], piece: AnswerPiece) -> bool:
    """Return whether the piece can be merged with the run before it."""
    last = run[0]
    match piece:
        case TextDelta() if piece.logprobs and len(run) >= _MOST_WITH_LOGPROBS:
            return False
        case TextDelta() | ReasoningDelta():
            return type(last) is type(piece)
        case ToolCallArguments(index=index):
            return isinstance(last, ToolCallArguments) and last.index == index
        case ToolCallStarted() | MalformedCall():
            return False
        case _:
            assert_never(piece)


def _merge(run: list[AnswerPiece]) -> AnswerPiece:
    if len(run) == 1:
        return run[0]
    text = "".join([piece.text for piece in run if not isinstance(piece, ToolCallStarted)])
    match run[0]:
        case TextDelta():
            logprobs = chain.from_iterable(piece.logprobs for piece in run if isinstance(piece, TextDelta))
            return TextDelta(text, tuple(logprobs))
        case ReasoningDelta():
            return ReasoningDelta(text)
        case ToolCallArguments(index=index):
            return ToolCallArguments(index, text)
        case ToolCallStarted() | MalformedCall():
            raise AssertionError("starts and failures of tool calls are never merged")
        case _:
            assert_never(run[0])
