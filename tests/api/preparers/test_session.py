"""Calls to one process: whose turn it is, and what becomes of them when it ends or speaks nonsense."""

from __future__ import annotations

import operator
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress

import pytest
import trio
import trio.testing
from trio.testing import trio_test

from api.preparers.messages import Begun, Call, Reply, Started, preparer_inbound, server_inbound
from api.preparers.pickles import Work, dump_result, load_work
from api.preparers.session import PreparerEnded, Session
from scheduler.errors import LinkError
from scheduler.link.channel import EngineGone, FrameChannel
from scheduler.link.framing import encode
from scheduler.link.wire_struct import WireStruct


class OtherEnd:
    """A process that answers when the test says so."""

    def __init__(self, stream: trio.abc.Stream) -> None:
        self._stream, self._reader = stream, preparer_inbound()
        self.calls: list[Call] = []

    async def run(self) -> None:
        with suppress(trio.ClosedResourceError):
            async for data in self._stream:
                self.calls += [one for one in self._reader.feed(data) if isinstance(one, Call)]

    @property
    def asked(self) -> list[object]:
        """The arguments of the calls that have come and are not answered."""
        return [load_work(call.work, {}).args[0] for call in self.calls]

    async def answer(self) -> None:
        """The oldest call."""
        call = self.calls.pop(0)
        result = operator.neg(load_work(call.work, {}).args[0])
        await self.send(Reply(call.number, dump_result(result, id), False, (), ()))
        await trio.testing.wait_all_tasks_blocked()

    async def send(self, message: WireStruct) -> None:
        await self._stream.send_all(encode(message))

    async def end(self) -> None:
        await trio.aclose_forcefully(self._stream)


@asynccontextmanager
async def connected() -> AsyncIterator[tuple[Session, OtherEnd, list[Exception]]]:
    """And what ended the session."""
    ours, theirs = trio.testing.memory_stream_pair()
    channel, ended = FrameChannel(ours, server_inbound()), list[Exception]()
    session, other = Session(channel, {}, lambda: None), OtherEnd(theirs)

    async def receive() -> None:
        try:
            await session.receive_forever()
        except (EngineGone, LinkError) as error:
            ended.append(error)
        session.end()

    async with trio.open_nursery() as nursery:
        nursery.start_soon(channel.write_forever)
        nursery.start_soon(receive)
        nursery.start_soon(other.run)
        await other.send(Started())
        await trio.testing.wait_all_tasks_blocked()
        assert session.ready
        yield session, other, ended
        nursery.cancel_scope.cancel()


async def negated(session: Session, number: int, tenant: str, found: list[int | str]) -> None:
    try:
        found.append(
            await session.call(Work(operator.neg, (number,)), None, lambda held: held, tenant, large=False)
        )
    except PreparerEnded as ended:
        found.append("it may be to blame" if ended.running else "it is not to blame")


@trio_test
async def test_two_calls_are_on_their_way_and_tenants_take_turns() -> None:
    found: list[int | str] = []
    async with connected() as (session, other, _), trio.open_nursery() as nursery:
        for number in range(1, 6):
            nursery.start_soon(negated, session, number, "many", found)
            await trio.testing.wait_all_tasks_blocked()
        nursery.start_soon(negated, session, 9, "one", found)
        await trio.testing.wait_all_tasks_blocked()
        assert other.asked == [1, 2]
        assert session.load == 6
        for _ in range(6):
            await other.answer()
    assert found.index(-9) < found.index(-4)
    assert sorted(map(int, found)) == [-9, -5, -4, -3, -2, -1]
    assert session.load == 0


@trio_test
async def test_only_a_call_that_was_begun_may_be_to_blame() -> None:
    """The process may have been killed before it read any."""
    found: list[int | str] = []
    async with connected() as (session, other, ended), trio.open_nursery() as nursery:
        for number in range(4):
            nursery.start_soon(negated, session, number, "", found)
            await trio.testing.wait_all_tasks_blocked()
        await other.send(Begun(1))
        await other.end()
        await trio.testing.wait_all_tasks_blocked()
        assert [type(error) for error in ended] == [EngineGone]
        assert found.count("it may be to blame") == 1
        assert found.count("it is not to blame") == 3
        assert not session.ready
        await negated(session, 5, "", found)
        assert found[-1] == "it is not to blame"


@trio_test
async def test_a_reply_to_no_call_ends_the_process_and_nothing_else() -> None:
    async with connected() as (_, other, ended):
        await other.send(Reply(77, b"", False, (), ()))
        await trio.testing.wait_all_tasks_blocked()
        with pytest.raises(LinkError, match="nobody asked: 77"):
            raise ended[0]
