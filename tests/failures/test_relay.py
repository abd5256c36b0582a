"""The relay that stands in for a slow or broken network."""

from __future__ import annotations

import pytest
import trio

from tests.fakes.relay import Relay

LOOPBACK = "127.0.0.1"


@pytest.mark.parametrize("broken", ["nothing", "cut", "frozen"])
def test_a_relay_delays_cuts_and_freezes(broken: str) -> None:
    """Each piece comes whole, in order, no sooner than its delay; a cut ends both ends, a freeze neither."""

    async def echo(stream: trio.SocketStream) -> None:
        async for data in stream:
            await stream.send_all(data)
        ended.set()

    async def main() -> None:
        async with trio.open_nursery() as nursery:
            listeners = await trio.open_tcp_listeners(0, host=LOOPBACK)
            nursery.start_soon(trio.serve_listeners, echo, listeners)
            relay = Relay(listeners[0].socket.getsockname()[1], 0.05)
            port: int = await nursery.start(relay.serve)
            async with await trio.open_tcp_stream(LOOPBACK, port) as stream:
                asked_at = trio.current_time()
                await stream.send_all(b"ping")
                assert await stream.receive_some() == b"ping"
                assert trio.current_time() - asked_at >= 0.1
                match broken:
                    case "cut":
                        relay.cut()
                        assert await stream.receive_some() == b""
                        await ended.wait()
                    case "frozen":
                        relay.freeze()
                        await stream.send_all(b"lost")
                        with trio.move_on_after(0.3) as silence:
                            await stream.receive_some()
                        assert silence.cancelled_caught
                        assert not ended.is_set()
                    case _:
                        await stream.send_all(b"pong")
                        assert await stream.receive_some() == b"pong"
            nursery.cancel_scope.cancel()

    ended = trio.Event()
    trio.run(main)
