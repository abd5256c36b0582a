"""The server's port for engines, over memory streams: what a stranger can cost, and who gets in."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress

import msgspec
import pytest
import trio
import trio.testing
from structlog.testing import capture_logs
from trio.testing import MockClock, trio_test

from scheduler.processes.listener import IDENTIFY_SECONDS, MOST_UNIDENTIFIED, Dialed, Listener
from scheduler.shared.framing import LENGTH_BYTES, encode
from scheduler.shared.hello import MOST_HELLO_BYTES, Hello, HelloReply, new_token
from scheduler.shared.messages import PROTOCOL_VERSION

TOKEN = new_token()
SECRET = "00" * 32
"""A stranger's guess."""


def hello(token: str = TOKEN, role: str = "engine", version: int = PROTOCOL_VERSION) -> bytes:
    return encode(Hello(version, token, role, "mac-2"))


class Door:
    """A listener, and dialers at it."""

    def __init__(self, nursery: trio.Nursery) -> None:
        self.arrived: list[Dialed] = []
        self.listener = Listener(TOKEN, self.arrived.append)
        self._nursery = nursery

    async def dial(self, *pieces: bytes) -> trio.abc.Stream:
        """Return the dialer's end, after it has sent these pieces."""
        ours, theirs = trio.testing.memory_stream_pair()
        self._nursery.start_soon(self.listener.identify, theirs)
        for piece in pieces:
            with suppress(trio.BrokenResourceError):
                await ours.send_all(piece)
            await trio.testing.wait_all_tasks_blocked()
        return ours


@asynccontextmanager
async def door() -> AsyncIterator[Door]:
    async with trio.open_nursery() as nursery:
        yield Door(nursery)
        nursery.cancel_scope.cancel()


async def reply(stream: trio.abc.Stream) -> HelloReply | None:
    """Return what the listener has answered, or None if it has closed without a word."""
    data = await heard(stream)
    return msgspec.msgpack.decode(data[LENGTH_BYTES:], type=HelloReply) if data else None


async def heard(stream: trio.abc.Stream) -> bytes:
    try:
        return bytes(await stream.receive_some())
    except trio.BrokenResourceError:
        return b""


async def closed(stream: trio.abc.Stream) -> bool:
    with trio.move_on_after(0.01):
        return await heard(stream) == b""
    return False


@trio_test
async def test_the_right_token_gets_through_with_what_follows_it(autojump_clock: MockClock) -> None:
    """Also in pieces; not a byte behind the Hello is read by the listener."""
    async with door() as at:
        whole = hello() + b"and more"
        stream = await at.dial(*(whole[start : start + 5] for start in range(0, len(whole), 5)))
        assert await reply(stream) == HelloReply(PROTOCOL_VERSION)
        [dialed] = at.arrived
        assert dialed.host == "mac-2"
        assert await dialed.stream.receive_some() == b"and more"
        assert at.listener.unidentified == 0


@pytest.mark.parametrize("frame", [hello(SECRET), hello(role="rank 1")], ids=["token", "role"])
@trio_test
async def test_a_stranger_is_refused(frame: bytes, autojump_clock: MockClock) -> None:
    async with door() as at:
        stream = await at.dial(frame)
        refused = await reply(stream)
        assert refused is not None
        assert refused.refusal == "its token is wrong, or nobody waits for it"
        assert await closed(stream)
        assert at.arrived == []


@pytest.mark.parametrize(
    ("sent", "seconds"),
    [
        pytest.param(b"", IDENTIFY_SECONDS, id="nothing"),
        pytest.param(hello(SECRET)[:-1], IDENTIFY_SECONDS, id="all but a byte"),
        pytest.param((MOST_HELLO_BYTES + 1).to_bytes(LENGTH_BYTES, "big"), 0, id="oversize"),
        pytest.param(b"GET / HTTP/1.1\r\nHost: front\r\n\r\n", 0, id="HTTP"),
        pytest.param(encode(HelloReply(PROTOCOL_VERSION)), 0, id="another message"),
    ],
)
@trio_test
async def test_a_hello_has_a_second_and_what_is_none_not_a_moment(
    sent: bytes, seconds: float, autojump_clock: MockClock
) -> None:
    """It is closed without an answer."""
    async with door() as at:
        stream = await at.dial(sent)
        started = trio.current_time()
        assert await heard(stream) == b""
        assert trio.current_time() - started == pytest.approx(seconds)


@trio_test
async def test_the_sixty_fifth_stranger_is_closed_at_once_and_the_others_are_not(
    autojump_clock: MockClock,
) -> None:
    """A second later there is room again."""
    async with door() as at:
        strangers = [await at.dial() for _ in range(MOST_UNIDENTIFIED)]
        await trio.testing.wait_all_tasks_blocked()
        late = await at.dial()
        assert await closed(late)
        assert at.listener.unidentified == MOST_UNIDENTIFIED
        assert not await closed(strangers[0])
        await trio.sleep(IDENTIFY_SECONDS)
        assert at.listener.unidentified == 0
        assert await reply(await at.dial(hello())) == HelloReply(PROTOCOL_VERSION)


@trio_test
async def test_strangers_do_not_fill_the_log(autojump_clock: MockClock) -> None:
    """One line in ten seconds, which counts them; no token is in it."""
    with capture_logs() as logs:
        async with door() as at:
            for _ in range(100):
                await at.dial(hello(SECRET))
            await trio.sleep(11)
            await at.dial(hello(SECRET))
    assert [entry["refused"] for entry in logs] == [1, 101]
    assert SECRET not in str(logs)
