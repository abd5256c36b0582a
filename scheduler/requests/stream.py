"""An accepted request as its one reader sees it: the events of its choices, in whatever order they come."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import trio

from scheduler.events import Prefilling, Progress, Queued, StreamEvent
from scheduler.requests.lifecycle import State
from scheduler.requests.mailbox import Doorbell
from scheduler.requests.record import StreamRecord


class RequestStream:
    """Iterate over it for the events of a request with one choice; `receive_choice` serves any number."""

    def __init__(
        self,
        records: Sequence[StreamRecord],
        doorbell: Doorbell,
        ahead_of: Callable[[int, float], int | None],
    ) -> None:
        """`ahead_of`: how many queued requests go before the one of this id, at a time."""
        self._records = tuple(records)
        self._doorbell = doorbell
        self._ahead_of = ahead_of
        self._last = 0

    @property
    def public_id(self) -> str:
        return self._records[0].prepared.request.public_id

    @property
    def prompt_tokens(self) -> int:
        """Of each prompt once: its choices share it."""
        return sum(len(record.prepared.prompt) for record in self._records if record.choice == 0)

    @property
    def progress(self) -> Progress:
        """What the request is waiting for now, for keep-alive messages."""
        record = self._records[0]
        if record.state is State.QUEUED:
            return Queued(self._ahead_of(record.request_id, trio.current_time()) or 0)
        return Prefilling(record.reported_prefill, len(record.prepared.prompt))

    def take_choice_nowait(self) -> tuple[int, StreamEvent] | None:
        """The next event of some choice with that choice's number, or None where nothing waits."""
        count = len(self._records)
        # Turn by turn, or a choice that never pauses would be the only one that is heard.
        for offset in range(1, count + 1):
            choice = (self._last + offset) % count
            if (event := self._records[choice].mailbox.take_nowait()) is not None:
                self._last = choice
                return choice, event
        return None

    async def receive_choice(self) -> tuple[int, StreamEvent]:
        """The next event of some choice. Raises trio.EndOfChannel after the final one of each."""
        while (found := self.take_choice_nowait()) is None:
            if all(record.mailbox.ended for record in self._records):
                raise trio.EndOfChannel
            await self._doorbell.wait()
        return found

    async def receive(self) -> StreamEvent:
        """The next event of the only choice. Raises trio.EndOfChannel after the final one."""
        assert len(self._records) == 1, "whose event would it be?"
        return (await self.receive_choice())[1]

    def take_nowait(self) -> StreamEvent | None:
        assert len(self._records) == 1, "whose event would it be?"
        found = self.take_choice_nowait()
        return None if found is None else found[1]

    def __aiter__(self) -> RequestStream:
        # Itself, not a generator: whoever stops iterating early leaves nothing to be collected.
        return self

    async def __anext__(self) -> StreamEvent:
        try:
            return await self.receive()
        except trio.EndOfChannel:
            raise StopAsyncIteration from None
