"""One request's way from token ids to text: detokenizer, then stop strings.

It runs where the engine's step is routed, not where the client reads: a stop string must end the row
in the engine at once, also when the client reads slowly.
"""

from __future__ import annotations

from collections.abc import Sequence

from scheduler.answer.detokenizer import Detokenizer
from scheduler.answer.stop_strings import StopStrings


class AnswerPipeline:
    """Feed it the tokens of the answer, without the end-of-sequence token."""

    def __init__(self, detokenizer: Detokenizer, stop: Sequence[str]) -> None:
        self._detokenizer = detokenizer
        self._stop_strings = StopStrings(stop)

    @property
    def stopped(self) -> bool:
        """Whether a stop string was found: the answer is complete."""
        return self._stop_strings.matched is not None

    def feed(self, token_ids: Sequence[int]) -> str:
        """Text for the client; may be empty."""
        text = self._detokenizer.feed(token_ids)
        return self._stop_strings.feed(text) if text else ""

    def finish(self) -> str:
        """The rest, at the end of the answer. A stop string may still be found in it."""
        text = self._stop_strings.feed(self._detokenizer.finish())
        return text if self.stopped else text + self._stop_strings.finish()
