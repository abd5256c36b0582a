"""A dialer and the listener over real sockets: how they meet, and that both notice the other's silence."""

from __future__ import annotations

import socket
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from functools import partial

import pytest
import trio

from scheduler.engine.join import dial as dialing
from scheduler.engine.join.dial import DialFailed, dial
from scheduler.processes.listener import Dialed, Listener
from scheduler.shared.hello import ENGINE_ROLE, HelloRefused, new_token
from scheduler.shared.keep_alive import SILENCE_SECONDS, keep_alive
from scheduler.shared.messages import PROTOCOL_VERSION

LOOPBACK = "127.0.0.1"
TOKEN = new_token()


@asynccontextmanager
async def listening() -> AsyncIterator[tuple[trio.MemoryReceiveChannel[Dialed], int]]:
    """Yield who arrives, and the port."""
    send, arrived = trio.open_memory_channel[Dialed](8)
    async with trio.open_nursery() as nursery:
        yield arrived, await nursery.start(Listener(TOKEN, send.send_nowait).serve, LOOPBACK, 0)
        nursery.cancel_scope.cancel()


async def dialed(port: int, token: str = TOKEN, *, addresses: tuple[str, ...] = (LOOPBACK,)) -> socket.socket:
    return await trio.to_thread.run_sync(
        lambda: dial(addresses, port, token, ENGINE_ROLE, host="mac-2", seconds=2.0)
    )


def test_both_ends_notice_nine_seconds_of_silence() -> None:
    """The options as the system has them, on the accepted connection and on the dialer's."""
    wanted = {
        (socket.IPPROTO_TCP, socket.TCP_NODELAY): 1,
        (socket.SOL_SOCKET, socket.SO_KEEPALIVE): 1,
        (socket.IPPROTO_TCP, socket.TCP_KEEPINTVL): 2,
        (socket.IPPROTO_TCP, socket.TCP_KEEPCNT): 3,
    }
    if sys.platform == "linux":
        wanted |= {
            (socket.IPPROTO_TCP, socket.TCP_KEEPIDLE): 3,
            (socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT): 9000,
        }

    async def main() -> None:
        async with listening() as (arrived, port):
            with await dialed(port) as theirs:
                one = await arrived.receive()
                assert (one.host, one.address) == ("mac-2", LOOPBACK)
                ours = one.stream
                assert isinstance(ours, trio.SocketStream)
                async with ours:
                    for (level, option), value in wanted.items():
                        for end in (ours, theirs):
                            assert end.getsockopt(level, option) in {value, value != 0}
                assert theirs.gettimeout() is None

    trio.run(main)


def test_macos_has_its_own_names_for_them(monkeypatch: pytest.MonkeyPatch) -> None:
    """Idle time and the bound on unacknowledged data have other numbers there."""
    chosen: dict[int, int] = {}

    class Recorder:
        def setsockopt(self, level: int, option: int, value: int, /) -> None:
            if level == socket.IPPROTO_TCP:
                chosen[option] = value

    monkeypatch.setattr("sys.platform", "darwin")
    keep_alive(Recorder().setsockopt)
    assert chosen[0x10] + chosen[socket.TCP_KEEPINTVL] * chosen[socket.TCP_KEEPCNT] == SILENCE_SECONDS
    assert chosen[0x80] == SILENCE_SECONDS


def test_addresses_are_tried_in_turn() -> None:
    """A server has several; one that does not answer costs an attempt."""

    async def main() -> None:
        async with listening() as (arrived, port):
            with await dialed(port, addresses=("127.0.0.2", LOOPBACK)) as theirs:
                assert theirs.getpeername() == (LOOPBACK, port)
                await (await arrived.receive()).stream.aclose()

    trio.run(main)


def test_another_version_is_refused_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    ahead = PROTOCOL_VERSION + 1
    monkeypatch.setattr(dialing, "PROTOCOL_VERSION", ahead)

    async def main() -> None:
        async with listening() as (_, port):
            with pytest.raises(HelloRefused, match=f"host mac-2 speaks protocol {ahead}, this server"):
                await dialed(port)

    trio.run(main)


def test_a_server_that_cannot_be_reached_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """With the port, and each address with its reason."""
    monkeypatch.setattr(dialing, "_PAUSE_SECONDS", 5.0)
    with socket.socket() as taken:
        taken.bind((LOOPBACK, 0))
        port = taken.getsockname()[1]
        with pytest.raises(
            DialFailed, match=rf"from mac-2 to the server's port {port} \({LOOPBACK}: .*refused"
        ):
            dial([LOOPBACK], port, "00" * 32, "host", host="mac-2", seconds=1.0)


@pytest.mark.parametrize("answer", [b"HTTP/1.1 400 Bad Request\r\n\r\n", b"\0\0\0\1x", b""])
def test_what_is_not_a_server_is_not_believed(answer: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dialing, "_PAUSE_SECONDS", 5.0)

    async def main() -> None:
        async def serve(stream: trio.SocketStream) -> None:
            await stream.receive_some()
            if answer:
                await stream.send_all(answer)

        async with trio.open_nursery() as nursery:
            [listener] = await nursery.start(partial(trio.serve_tcp, host=LOOPBACK), serve, 0)
            with pytest.raises(DialFailed, match=r"not this server|no part of|closed the connection"):
                await dialed(listener.socket.getsockname()[1], "00" * 32)
            nursery.cancel_scope.cancel()

    trio.run(main)


def test_a_peer_that_sends_a_byte_now_and_then_costs_one_attempt(monkeypatch: pytest.MonkeyPatch) -> None:
    """Not one attempt a byte: whatever took the server's port could keep an engine for an hour."""
    monkeypatch.setattr(dialing, "_PAUSE_SECONDS", 5.0)

    async def main() -> None:
        async def serve(stream: trio.SocketStream) -> None:
            await stream.send_all((1000).to_bytes(4, "big"))
            with suppress(trio.BrokenResourceError):
                while True:
                    await stream.send_all(b"x")
                    await trio.sleep(0.2)

        with trio.fail_after(60):
            async with trio.open_nursery() as nursery:
                [listener] = await nursery.start(partial(trio.serve_tcp, host=LOOPBACK), serve, 0)
                with pytest.raises(DialFailed, match="time"):
                    await dialed(listener.socket.getsockname()[1])
                nursery.cancel_scope.cancel()

    trio.run(main)
