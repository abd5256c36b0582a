"""An accepted request for its reader: the events of its choices, in order of arrival."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import trio

from scheduler.events import Prefilling, Progress, Queued, StreamEvent, Usage
from scheduler.requests.lifecycle import State
from scheduler.requests.mailbox import Doorbell
from scheduler.requests.record import StreamRecord


class RequestStream:
    def __init__(
        self,
        records: Sequence[StreamRecord],
        doorbell: Doorbell,
        waits_for: Callable[[], str] = str,
    ) -> None:
        """`waits_for`: what the queue waits for beside its turn, or an empty string."""
        self._records = tuple(records)
        self._doorbell = doorbell
        self._waits_for = waits_for
        self._last = 0

    @property
    def public_id(self) -> str:
        return self._records[0].request.public_id

    @property
    def prompt_tokens(self) -> int:
        """Return the prompt tokens of all prompts. Each prompt counts once, because its choices share it."""
        return sum(len(record.submit.prompt) for record in self._records if record.choice == 0)

    @property
    def unheld(self) -> tuple[str, ...]:
        """Return what a schema asks that the answer is not held to, as `field#/JSON/pointer`."""
        return self._records[0].prepared.unheld

    @property
    def kept_bytes(self) -> int:
        """Return about how much the answers keep of their bodies beside the tokens."""
        return sum(record.prepared.kept_bytes for record in self._records if record.choice == 0)

    def usage_so_far(self, choice: int) -> Usage:
        """Return the usage of one choice, including tokens of which the reader has no event yet."""
        return self._records[choice].usage

    @property
    def progress(self) -> Progress:
        """Return what the first choice waits for or its prefill progress, for keep-alive comments."""
        record = self._records[0]
        if record.state is State.QUEUED:
            return Queued(self._waits_for())
        if record.state is State.AWAITING_ENGINE:
            return Queued("an engine that resumes it: its own died")
        return Prefilling(record.reported_prefill, len(record.submit.prompt))

    def take_choice_nowait(self) -> tuple[int, StreamEvent] | None:
        """Return the next event of any choice, with the choice's number, or None if there is none."""
        count = len(self._records)
        # Round robin: otherwise a choice that never pauses would starve the others.
        for offset in range(1, count + 1):
            choice = (self._last + offset) % count
            if (event := self._records[choice].mailbox.take_nowait()) is not None:
                self._last = choice
                return choice, event
        return None

    async def receive_choice(self) -> tuple[int, StreamEvent]:
        """Return the next event of any choice. Raise trio.EndOfChannel after the final event of each."""
        while (found := self.take_choice_nowait()) is None:
            if all(record.mailbox.ended for record in self._records):
                raise trio.EndOfChannel
            await self._doorbell.wait()
        return found
