"""The parent's end of the link, over memory streams."""

from __future__ import annotations

import pytest
import trio
import trio.testing
from trio.testing import trio_test

from scheduler.processes.channel import Channel, EngineGone
from scheduler.shared.framing import encode, engine_inbound
from scheduler.shared.messages import Cancel, Loading


class CountingStream(trio.abc.Stream):
    """Counts what is sent, each send taking as long as the test wants."""

    def __init__(self) -> None:
        self.sent: list[bytes] = []
        self.let_go = trio.Event()

    async def send_all(self, data: bytes | bytearray | memoryview) -> None:
        self.sent.append(bytes(data))
        await self.let_go.wait()

    async def wait_send_all_might_not_block(self) -> None:
        await trio.lowlevel.checkpoint()

    async def receive_some(self, max_bytes: int | None = None) -> bytes:
        await trio.sleep_forever()
        raise AssertionError

    async def aclose(self) -> None:
        await trio.lowlevel.checkpoint()


class ResetStream(CountingStream):
    """A stream whose peer is gone without a close."""

    async def send_all(self, data: bytes | bytearray | memoryview) -> None:
        await trio.lowlevel.checkpoint()
        raise trio.BrokenResourceError

    async def receive_some(self, max_bytes: int | None = None) -> bytes:
        await trio.lowlevel.checkpoint()
        raise trio.BrokenResourceError


@trio_test
async def test_messages_arrive_in_order_and_then_the_end_of_the_engine() -> None:
    """Messages before the engine's death are still received; then EngineGone, at each call."""
    ours, theirs = trio.testing.memory_stream_pair()
    channel = Channel(ours)
    await theirs.send_all(encode(Loading("one")) + encode(Loading("two")))
    await theirs.aclose()
    assert [await channel.receive(), await channel.receive()] == [Loading("one"), Loading("two")]
    for _ in range(2):
        with pytest.raises(EngineGone):
            await channel.receive()


@pytest.mark.parametrize("closed_by_us", [False, True])
@trio_test
async def test_sending_after_the_engine_is_gone_goes_nowhere(closed_by_us: bool) -> None:
    """Code that cancels a request at that moment must not get an exception; the writer ends silently."""
    ours, theirs = trio.testing.memory_stream_pair()
    channel = Channel(ours if closed_by_us else ResetStream())
    await theirs.aclose()
    if closed_by_us:
        await channel.aclose()
    channel.send_nowait(Cancel(1))
    with trio.testing.assert_checkpoints():
        await channel.write_forever()
    channel.send_nowait(Cancel(2))


@trio_test
async def test_the_writer_sends_what_has_gathered_at_once() -> None:
    """Commands queued during a send become one send, in order."""
    stream = CountingStream()
    channel = Channel(stream)
    async with trio.open_nursery() as nursery:
        channel.send_nowait(Cancel(1))
        channel.send_nowait(Cancel(2))
        nursery.start_soon(channel.write_forever)
        await trio.testing.wait_all_tasks_blocked()
        for request_id in (3, 4, 5):
            channel.send_nowait(Cancel(request_id))
        await trio.testing.wait_all_tasks_blocked()
        assert len(stream.sent) == 1
        stream.let_go.set()
        await trio.testing.wait_all_tasks_blocked()
        nursery.cancel_scope.cancel()
    commands = [list(engine_inbound().feed(data)) for data in stream.sent]
    assert commands == [[Cancel(1), Cancel(2)], [Cancel(3), Cancel(4), Cancel(5)]]
