"""The front's port, over memory streams and the virtual clock: what a stranger can cost, and who gets in."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress

import msgspec
import pytest
import trio
import trio.testing
from structlog.testing import capture_logs

from scheduler.link.framing import LENGTH_BYTES, encode
from scheduler.link.hello import MOST_HELLO_BYTES, Hello, HelloRefused, HelloReply
from scheduler.link.listener import IDENTIFY_SECONDS, MOST_UNIDENTIFIED, Awaited, Listener
from scheduler.link.messages import PROTOCOL_VERSION

SECRET = "00" * 32


def hello(token: str, role: str = "host", version: int = PROTOCOL_VERSION) -> bytes:
    return encode(Hello(version, token, role, "mac-2"))


class Door:
    """A listener, and dialers at it."""

    def __init__(self, nursery: trio.Nursery) -> None:
        self.listener = Listener()
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


def run(test: Callable[[], Awaitable[None]]) -> None:
    trio.run(test, clock=trio.testing.MockClock(autojump_threshold=0))


async def reply(stream: trio.abc.Stream) -> HelloReply | None:
    """What the listener has answered; None: it has closed without a word."""
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


def test_the_right_token_gets_through_with_what_follows_it() -> None:
    """Also in pieces; not a byte behind the Hello is read by the listener."""

    async def main() -> None:
        async with door() as at, at.listener.expect("host") as awaited:
            whole = hello(awaited.token) + b"and more"
            stream = await at.dial(*(whole[start : start + 5] for start in range(0, len(whole), 5)))
            assert await reply(stream) == HelloReply(PROTOCOL_VERSION)
            dialed = await awaited.arrive()
            assert dialed.host == "mac-2"
            assert await dialed.stream.receive_some() == b"and more"
            await dialed.stream.aclose()
            assert at.listener.unidentified == 0

    run(main)


def test_a_token_is_good_once() -> None:
    async def main() -> None:
        async with door() as at, at.listener.expect("host") as awaited:
            first = await at.dial(hello(awaited.token))
            second = await at.dial(hello(awaited.token))
            refused = await reply(second)
            assert refused is not None
            assert "used before" in refused.refusal
            assert await closed(second)
            assert (await reply(first)) == HelloReply(PROTOCOL_VERSION)
            assert not await closed(first)

    run(main)


@pytest.mark.parametrize("attempt", ["wrong token", "wrong role", "no longer waited for"])
def test_a_token_that_nobody_waits_for_is_refused(attempt: str) -> None:
    """All in the same words: they say nothing of what is waited for."""

    async def main() -> None:
        async with door() as at:
            async with at.listener.expect("host") as gone:
                pass
            async with at.listener.expect("host") as awaited:
                frame = {
                    "wrong token": hello(SECRET),
                    "wrong role": hello(awaited.token, "engine"),
                    "no longer waited for": hello(gone.token),
                }[attempt]
                stream = await at.dial(frame)
                refused = await reply(stream)
                assert refused is not None
                assert refused.refusal == "its token is wrong, was used before, or is not waited for any more"
                assert await closed(stream)

    run(main)


def test_another_version_reaches_the_waiter_by_name() -> None:
    """And the dialer; nobody may use the token again."""
    ahead = PROTOCOL_VERSION + 1

    async def main() -> None:
        async with door() as at, at.listener.expect("host") as awaited:
            stream = await at.dial(hello(awaited.token, version=ahead))
            sentence = f"host mac-2 speaks protocol {ahead}, this server {PROTOCOL_VERSION}"
            assert await reply(stream) == HelloReply(PROTOCOL_VERSION, sentence)
            assert await closed(stream)
            with pytest.raises(HelloRefused, match=sentence):
                await awaited.arrive()
            again = await reply(await at.dial(hello(awaited.token)))
            assert again is not None
            assert again.refusal

    run(main)


@pytest.mark.parametrize("sent", [b"", hello(SECRET)[:-1]], ids=["nothing", "all but a byte"])
def test_a_hello_has_a_second(sent: bytes) -> None:
    async def main() -> None:
        async with door() as at:
            stream = await at.dial(sent)
            started = trio.current_time()
            assert await heard(stream) == b""
            assert trio.current_time() - started == pytest.approx(IDENTIFY_SECONDS)

    run(main)


@pytest.mark.parametrize(
    "sent",
    [
        (MOST_HELLO_BYTES + 1).to_bytes(LENGTH_BYTES, "big"),
        b"GET / HTTP/1.1\r\nHost: front\r\n\r\n",
        (3).to_bytes(LENGTH_BYTES, "big") + b"abc",
        encode(HelloReply(PROTOCOL_VERSION)),
    ],
    ids=["oversize", "HTTP", "garbage", "another message"],
)
def test_what_is_no_hello_is_closed_at_once(sent: bytes) -> None:
    """Without an answer, and before its second is over."""

    async def main() -> None:
        async with door() as at:
            stream = await at.dial(sent)
            started = trio.current_time()
            assert await heard(stream) == b""
            assert trio.current_time() == started

    run(main)


def test_the_sixty_fifth_stranger_is_closed_at_once_and_the_others_are_not() -> None:
    """A second later there is room again."""

    async def main() -> None:
        async with door() as at, at.listener.expect("host") as awaited:
            strangers = [await at.dial() for _ in range(MOST_UNIDENTIFIED)]
            await trio.testing.wait_all_tasks_blocked()
            late = await at.dial()
            assert await closed(late)
            assert at.listener.unidentified == MOST_UNIDENTIFIED
            assert not await closed(strangers[0])
            await trio.sleep(IDENTIFY_SECONDS)
            assert at.listener.unidentified == 0
            assert await reply(await at.dial(hello(awaited.token))) == HelloReply(PROTOCOL_VERSION)

    run(main)


def test_identified_connections_take_no_strangers_room() -> None:
    async def main() -> None:
        async with door() as at, trio.open_nursery() as nursery:

            async def engine() -> None:
                async with at.listener.expect("engine") as awaited:
                    await at.dial(hello(awaited.token, "engine"))
                    await (await awaited.arrive()).stream.receive_some()

            for _ in range(2 * MOST_UNIDENTIFIED):
                nursery.start_soon(engine)
            await trio.sleep(0.1)
            assert at.listener.unidentified == 0
            nursery.cancel_scope.cancel()

    run(main)


def test_a_connection_that_nobody_fetches_is_closed() -> None:
    """The waiter was cancelled between the Hello and its turn."""

    async def main() -> None:
        async with door() as at:
            async with at.listener.expect("host") as awaited:
                stream = await at.dial(hello(awaited.token))
                assert await reply(stream) == HelloReply(PROTOCOL_VERSION)
            assert await closed(stream)

    run(main)


def test_a_cancelled_waiter_leaves_nothing() -> None:
    async def main() -> None:
        async with door() as at:
            seen: list[Awaited] = []
            with trio.move_on_after(5):
                async with at.listener.expect("host") as awaited:
                    seen.append(awaited)
                    await awaited.arrive()
            refused = await reply(await at.dial(hello(seen[0].token)))
            assert refused is not None
            assert refused.refusal

    run(main)


def test_strangers_do_not_fill_the_log() -> None:
    """One line in ten seconds, which counts them; no token is in it."""

    async def main() -> None:
        async with door() as at:
            for _ in range(100):
                await at.dial(hello(SECRET))
            await trio.sleep(11)
            await at.dial(hello(SECRET))

    with capture_logs() as logs:
        run(main)
    assert [entry["refused"] for entry in logs] == [1, 101]
    assert SECRET not in str(logs)
