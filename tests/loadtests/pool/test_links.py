"""The bench of links runs real engines; its relay is the network of the tests, too."""

from __future__ import annotations

import pytest
import trio

from loadtests.chaos import report
from loadtests.pool.commands import of_links
from loadtests.pool.links import SOCKET_PAIR, LinkCost, LinksPlan, run
from loadtests.pool.relay import Relay

LOOPBACK = "127.0.0.1"


def test_every_link_is_measured_and_compared_with_the_socket_pair() -> None:
    """An engine gives tokens by each of them, and the server needs time for them."""
    notes: list[str] = []
    plan = LinksPlan(delays_ms=(0, 1), step_seconds=0.002, slots=2, seconds=0.25, rounds=1)
    found = run(plan, notes.append)
    assert [one.link for one in found] == ["socket pair", "TCP", "TCP, 1 ms one way"]
    assert all(one.tokens_per_second > 0 for one in found)
    assert all(one.cpu_seconds_per_token > 0 for one in found)
    assert len(notes) == 3
    assert "every answer was whole" in report.text("Links", [], list(of_links(found)))


def test_the_report_has_medians_and_shares() -> None:
    [(title, lines)] = of_links([LinkCost(SOCKET_PAIR, 100.0, 40e-6), LinkCost(10, 90.0, 50e-6)])
    assert "of a socket pair's" in title
    assert lines == [
        ("socket pair", "100.0, 1.000; 40 µs, 1.00"),
        ("TCP, 10 ms one way", "90.0, 0.900; 50 µs, 1.25"),
    ]


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
