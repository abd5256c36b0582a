"""One request's events between the router and its reader: one writer, one reader, and it merges.

A reader that falls behind gets its text in larger pieces. Putting never waits, so a slow client can
hold up neither the engine nor another stream; the size is bounded by the request's own max_tokens.
"""

from __future__ import annotations

import trio

from scheduler.events import FinalEvent, Prefilling, StreamEvent, TextDelta


class Mailbox:
    """Holds at most one progress, one merged text and one final event."""

    def __init__(self) -> None:
        self._progress: Prefilling | None = None
        self._text: list[str] = []
        self._final: FinalEvent | None = None
        self._ended = False
        self._wake = trio.Event()

    def put_progress(self, progress: Prefilling) -> None:
        self._progress = progress
        self._wake.set()

    def put_text(self, text: str) -> None:
        assert self._final is None, "text after the final event"
        if text:
            self._text.append(text)
            self._wake.set()

    def put_final(self, event: FinalEvent) -> None:
        """Exactly once."""
        assert self._final is None, "a second final event"
        self._final = event
        self._wake.set()

    def take_nowait(self) -> StreamEvent | None:
        """The next event in order (progress, text, final), or None where nothing waits."""
        if self._text:
            # Progress of a prefill is no news once there is text.
            self._progress = None
            text, self._text = "".join(self._text), []
            return TextDelta(text)
        if self._progress is not None:
            progress, self._progress = self._progress, None
            return progress
        if self._final is not None and not self._ended:
            self._ended = True
            return self._final
        return None

    async def receive(self) -> StreamEvent:
        """The next event. Raises trio.EndOfChannel after the final one."""
        while (event := self.take_nowait()) is None:
            if self._ended:
                raise trio.EndOfChannel
            self._wake = trio.Event()
            await self._wake.wait()
        return event
