"""The server's end of one running preparation process: calls go out, replies come back."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import count
from typing import Any

import trio

from api.preparers.messages import Begun, Caches, Call, Free, FromPreparer, Reply, Started
from api.preparers.pickles import HeldBody, HeldChat, Work, dump_work, load_result
from api.worker_threads import FairLimiter
from scheduler.errors import LinkError
from scheduler.link.channel import FrameChannel

_CALLS = 2
"""At a time: one that is carried out, and one that is on its way."""


class PreparerEnded(Exception):
    """The process ended before it answered."""

    def __init__(self, *, running: bool) -> None:
        super().__init__()
        self.running = running
        """Whether this call may have been what ended it: the process had begun it."""


@dataclass(slots=True)
class _Asked:
    tenant: str
    answered: trio.Event = field(default_factory=trio.Event)
    reply: Reply | None = None
    begun: bool = False
    abandoned: bool = False


class Session:
    """Calls to one process while it lives. Tenants take turns."""

    def __init__(
        self, channel: FrameChannel[FromPreparer], names: Mapping[int, str], on_ready: Callable[[], None]
    ) -> None:
        """`names`: of the models, by the identity of their `Preparation`."""
        self._on_ready = on_ready
        self._channel, self._names = channel, names
        self._places = FairLimiter(_CALLS)
        self._numbers = count(1)
        self._asked: dict[int, _Asked] = {}
        """By number."""
        self._token = trio.lowlevel.current_trio_token()
        self.ready = self.ended = False
        self.load = 0
        """Calls that wait for a place or an answer."""
        self.caches: tuple[Caches, ...] = ()

    async def call(
        self,
        work: Work,
        of: int | None,
        found: Callable[[HeldBody | HeldChat], object],
        tenant: str,
        *,
        large: bool,
    ) -> Any:
        """Return the result of `work`; `found` makes what stands in it for what stays there. `of`: the held
        object that is its first argument. Raise what it raises, or PreparerEnded.

        A call that is cancelled is carried out nevertheless, and keeps its place until then.
        """
        self.load += 1
        try:
            await self._places.acquire(tenant)
            asked = self._send(work, of, tenant, large)
            try:
                await asked.answered.wait()
            except trio.Cancelled:
                asked.abandoned = True
                self._free_all(asked)
                raise
        finally:
            self.load -= 1
        if asked.reply is None:
            raise PreparerEnded(running=asked.begun)
        result = load_result(asked.reply.result, found)
        if asked.reply.raised:
            raise result
        return result

    def _send(self, work: Work, of: int | None, tenant: str, large: bool) -> _Asked:
        try:
            if self.ended:
                raise PreparerEnded(running=False)
            number = next(self._numbers)
            self._channel.send_nowait(Call(number, dump_work(work, self._names), of, large))
        except BaseException:
            self._places.release(tenant)
            raise
        asked = self._asked[number] = _Asked(tenant)
        return asked

    def _free_all(self, asked: _Asked) -> None:
        for handle in () if asked.reply is None else asked.reply.held:
            self._free(handle)

    def free_soon(self, handle: int) -> None:
        """Let the process forget an object. From any thread, and from a finalizer."""
        if not self.ended:
            with suppress(trio.RunFinishedError):
                self._token.run_sync_soon(self._free, handle)

    def _free(self, handle: int) -> None:
        self._channel.send_nowait(Free(handle))

    async def receive_forever(self) -> None:
        """Raises EngineGone when the process has ended, LinkError for what is no message."""
        while True:
            match await self._channel.receive():
                case Started():
                    self.ready = True
                    self._on_ready()
                case Begun(number=number):
                    self._call(number).begun = True
                case Reply() as reply:
                    self._take(reply)

    def _call(self, number: int) -> _Asked:
        """Raises LinkError for the number of no call."""
        if (asked := self._asked.get(number)) is None:
            raise LinkError(f"a preparation process answers what nobody asked: {number}")
        return asked

    def _take(self, reply: Reply) -> None:
        asked = self._call(reply.number)
        del self._asked[reply.number]
        self.caches = reply.caches
        self._places.release(asked.tenant)
        asked.reply = reply
        asked.answered.set()
        if asked.abandoned:
            self._free_all(asked)

    def end(self) -> None:
        """The process is gone: calls raise PreparerEnded."""
        self.ended, self.ready = True, False
        left, self._asked = list(self._asked.values()), {}
        for asked in left:
            self._places.release(asked.tenant)
            asked.answered.set()
