"""A disconnect cancels the handler immediately, at any point; after the response it cancels nothing."""

from __future__ import annotations

from collections import Counter

import pytest
import trio
import trio.testing
from starlette.types import Receive, Scope, Send
from trio.testing import MockClock, trio_test

from api.http.beginnings import AT_ONCE_SECONDS, END_SECONDS
from tests.api.http.wire import GET, Client, Sleeper, Ticker, post, read_body, respond, serving


@pytest.mark.parametrize("half", [False, True], ids=["close", "half-close"])
@pytest.mark.parametrize(
    "request_bytes",
    [post(b"body"), post(b"body")[:-1], GET + GET],
    ids=["waiting", "in the body", "pipelined"],
)
@trio_test
async def test_leaving_cancels_a_handler(request_bytes: bytes, half: bool, autojump_clock: MockClock) -> None:
    """Also one that has sent nothing, reads nothing and waits forever; it takes no half body for a whole one,
    and the next request does not hide the departure. SHUT_WR counts as one."""
    cancelled_at: list[float] = []

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await read_body(receive)
            assert not request_bytes.endswith(b"bod")
            await trio.sleep_forever()
        except trio.Cancelled:
            cancelled_at.append(trio.current_time())
            raise

    async with serving(app) as site:
        client = site.connect()
        await client.send(request_bytes)
        await trio.sleep(3)
        await (client.stream.send_eof() if half else client.close())
        await trio.testing.wait_all_tasks_blocked()
        assert cancelled_at == [3]
        statistics = site.server.statistics()
        assert (statistics.active_requests, statistics.open_connections) == (0, 0)
        assert (statistics.disconnects_total, statistics.requests_total) == (1, 1)


@trio_test
async def test_leaving_cancels_a_handler_that_is_writing(autojump_clock: MockClock) -> None:
    """A write that waits for the client ends when the client does."""
    app = Ticker()
    async with serving(app) as site:
        client = Client(site.listener.connect(lockstep=True))
        await client.send(GET)
        await trio.sleep(4)
        await client.close()
        await trio.testing.wait_all_tasks_blocked()
        assert app.cancelled_at == [4]


@trio_test
async def test_after_the_response_a_departure_cancels_nothing(autojump_clock: MockClock) -> None:
    """Work after the response (logging, counting) is done although the client has gone."""
    done = False

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        nonlocal done
        await respond(send, b"ok")
        await trio.sleep(5)
        done = True

    async with serving(app) as site:
        client = site.connect()
        await client.ask()
        await client.close()
        await trio.sleep(6)
        assert done
        statistics = site.server.statistics()
        assert (statistics.disconnects_total, statistics.open_connections) == (0, 0)


@trio_test
async def test_a_watcher_hears_of_the_end_only_after_the_last_write(autojump_clock: MockClock) -> None:
    """An application's own watcher must not cut the last bytes, nor the connection after them."""

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        async with trio.open_nursery() as nursery:

            async def watch() -> None:
                while (await receive())["type"] != "http.disconnect":
                    pass
                nursery.cancel_scope.cancel()

            nursery.start_soon(watch)
            await respond(send, b"x" * 1000)
            await trio.sleep_forever()

    async with serving(app) as site:
        client = Client(site.listener.connect(lockstep=True))
        for _ in range(2):
            assert (await client.ask()).body == b"x" * 1000
            await trio.testing.wait_all_tasks_blocked()
            assert site.server.statistics().active_requests == 0


@trio_test
async def test_clients_that_leave_together_end_over_some_turns(autojump_clock: MockClock) -> None:
    """A few a turn of the loop, in which all else runs."""
    app = Sleeper()
    async with serving(app) as site:
        clients = [site.connect() for _ in range(100)]
        for client in clients:
            await client.send(GET)
        await trio.testing.wait_all_tasks_blocked()
        for client in clients:
            await client.close()
        await trio.sleep(1)
        together = Counter(app.cancelled_at)
        assert together.total() == 100
        assert max(together.values()) <= AT_ONCE_SECONDS / END_SECONDS + 1
