"""A preparation process over memory: the real `Preparer`, in a task, on a virtual clock."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import trio
import trio.testing

from api.preparers.messages import Begun, Call, ToPreparer, preparer_inbound
from api.preparers.preparer import Preparer
from scheduler.answer.answer_format import PLAIN, AnswerFormat
from scheduler.link.framing import encode
from scheduler.link.side_process import SideSession
from scheduler.link.wire_struct import WireStruct
from scheduler.prompt.preparation import Preparation
from tests.fakes.byte_tokenizer import ByteTokenizer
from tests.fakes.scheduling import FOLDER


@dataclass(frozen=True, slots=True)
class ByteRecipe:
    """Of the byte tokenizer."""

    answer_format: AnswerFormat = PLAIN

    def make(self) -> Preparation:
        return Preparation(ByteTokenizer(self.answer_format), FOLDER)


class MemoryPreparer:
    """Implements `SideLauncher`. It ends when `dies` says so of a call that it is about to carry out, and
    waits before each one until `gate` is set."""

    def __init__(self) -> None:
        self.dies: Callable[[Call], bool] = lambda call: False
        self.gate = trio.Event()
        self.gate.set()
        self.starts = 0
        self.calls = 0
        """Those that were begun, in all lives."""
        self._preparer: Preparer | None = None
        self._life = trio.CancelScope()

    @property
    def held(self) -> int:
        """How many conversations it holds."""
        return 0 if self._preparer is None else len(self._preparer.held)

    def kill(self) -> None:
        self._life.cancel()

    async def run(self, session: SideSession) -> str:
        self.starts += 1
        ours, theirs = trio.testing.memory_stream_pair()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._live, theirs)
            await session(ours)
            nursery.cancel_scope.cancel()
        return "it was killed"

    async def _live(self, stream: trio.abc.Stream) -> None:
        with trio.CancelScope() as self._life:
            reader, sent = preparer_inbound(), list[WireStruct]()
            self._preparer = Preparer(sent.append)
            async for data in stream:
                for message in reader.feed(data):
                    if not await self._may_do(stream, message):
                        break
                    self._preparer.handle(message)
                    while sent:
                        await stream.send_all(encode(sent.pop(0)))
                else:
                    continue
                break
        await trio.aclose_forcefully(stream)

    async def _may_do(self, stream: trio.abc.SendStream, message: ToPreparer) -> bool:
        """A call that it dies of is begun."""
        if not isinstance(message, Call):
            return True
        self.calls += 1
        await self.gate.wait()
        if dies := self.dies(message):
            await stream.send_all(encode(Begun(message.number)))
        return not dies
