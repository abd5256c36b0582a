"""One request's way from token ids to the events a client reads: detokenizer, stop strings, sections.

It runs where the engine's step is routed, not where the client reads: a stop string must end the row
in the engine at once, also when the client reads slowly. Every stage is a plain object that waits for
nothing, and the events do not depend on how many tokens are fed at a time.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from scheduler.answer.detokenizer import Detokenizer
from scheduler.answer.stop_strings import StopStrings
from scheduler.events import AnswerPiece, FinishReason, TextDelta


class AnswerPipeline:
    """Feed it the tokens of the answer, without the end-of-sequence token."""

    def __init__(self, detokenizer: Detokenizer, stop: Sequence[str]) -> None:
        self._detokenizer = detokenizer
        self._stop_strings = StopStrings(stop)
        self.reasoning_tokens = 0

    @property
    def stopped(self) -> bool:
        """Whether the answer is complete, whatever the engine would still write."""
        return self._stop_strings.matched is not None

    @property
    def stop_string(self) -> str | None:
        """The stop string that was found."""
        return self._stop_strings.matched

    def feed(self, token_ids: Sequence[int]) -> Iterator[AnswerPiece]:
        """What these tokens complete. Raises SchedulerError where the answer cannot be read."""
        text = self._detokenizer.feed(token_ids)
        if text and (certain := self._stop_strings.feed(text)):
            yield TextDelta(certain)

    def finish(self, reason: FinishReason) -> Iterator[AnswerPiece]:
        """The rest, at the end of the answer. A stop string may still be found in it."""
        if self.stopped:
            return
        text = self._stop_strings.feed(self._detokenizer.finish())
        if not self.stopped:
            text += self._stop_strings.finish()
        if text:
            yield TextDelta(text)

    def finish_reason(self, by_engine: FinishReason) -> FinishReason:
        """Why the answer ended, when `finish` is through: the engine knows only why the row did."""
        return FinishReason.STOP if self.stopped else by_engine
