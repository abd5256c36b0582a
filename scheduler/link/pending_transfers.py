"""Commands of exports and imports sent to an engine, and the tasks that wait for the replies."""

from __future__ import annotations

from itertools import count

import trio

from scheduler.errors import Unavailable
from scheduler.link.channel import EngineSender
from scheduler.link.transfers import CloseTransfer, Transfer, TransferReply

_REPLY_SECONDS = 60.0
"""The engine replies between two steps, and a step of a large prefill takes seconds."""


class _Query:
    def __init__(self) -> None:
        self.reply: TransferReply | None = None
        self.done = trio.Event()


class PendingTransfers:
    """Every command gets one reply or one error, also when the engine dies meanwhile. A transfer has one
    command open at a time."""

    def __init__(self, sender: EngineSender) -> None:
        self._sender = sender
        self._numbers = count(1)
        self._open: dict[int, _Query] = {}

    def number(self) -> int:
        """Of a new transfer: the `query` of its commands."""
        return next(self._numbers)

    async def ask(self, command: Transfer) -> TransferReply:
        """Raise Unavailable if no reply arrives."""
        if not self._sender.connected:
            raise Unavailable("the engine is not running", retry_after_seconds=1.0)
        query = self._open[command.query] = _Query()
        try:
            self._sender.send(command)
            with trio.move_on_after(_REPLY_SECONDS):
                await query.done.wait()
        finally:
            del self._open[command.query]
        if query.reply is None:
            raise Unavailable("the engine did not answer", retry_after_seconds=1.0)
        return query.reply

    def close(self, number: int) -> None:
        self._sender.send(CloseTransfer(number))

    def answered(self, reply: TransferReply) -> None:
        """Deliver a reply. The caller may have left."""
        if (query := self._open.get(reply.query)) is not None:
            query.reply = reply
            query.done.set()

    def engine_lost(self) -> None:
        for query in self._open.values():
            query.done.set()
