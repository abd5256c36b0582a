"""More connections than the limit: everybody reads an answer, nobody is reset, and probes are served."""

from __future__ import annotations

import pytest
import trio
import trio.testing
from hypothesis import given
from hypothesis import strategies as st
from starlette.types import Receive, Scope, Send
from trio.testing import MockClock, trio_test

from api.http.limits import Limits, refusal_limits
from api.http.refusals import Refusal
from tests.api.http.wire import GET, Client, Site, Sleeper, post, respond, serving

PROBE = b"GET /health HTTP/1.1\r\nhost: x\r\n\r\n"
FULL = Limits(connections=1, refusals=2)


async def sleeper_with_probe(scope: Scope, receive: Receive, send: Send) -> None:
    if scope["path"] == "/health":
        await respond(send, b"ok")
    else:
        await trio.sleep_forever()


async def occupied(site: Site) -> None:
    """Let a request take the only connection."""
    await site.connect().send(GET)
    await trio.testing.wait_all_tasks_blocked()


@pytest.mark.parametrize("asks", [True, False], ids=["with a request", "silent"])
@trio_test
async def test_a_flood_waits_and_is_answered(asks: bool, autojump_clock: MockClock) -> None:
    """Beyond `refusals` at the same time, connections wait in the backlog: each is answered in its turn, and
    none is closed without an answer."""
    async with serving(Sleeper(), FULL) as site:
        await occupied(site)
        clients = [site.connect() for _ in range(50)]
        statuses: list[int] = []

        async def one(client: Client) -> None:
            if asks:
                await client.send(GET)
            response = await client.read_response()
            assert response.headers["retry-after"] == "1"
            assert await client.read_rest() == b""
            await client.close()
            statuses.append(response.status)

        began = trio.current_time()
        async with trio.open_nursery() as nursery:
            for client in clients:
                nursery.start_soon(one, client)
        assert statuses == [503] * 50
        # Silent ones take a tenth of a second each, two at a time.
        assert trio.current_time() - began <= (0 if asks else 50 * 0.1 / 2 + 1)
        assert site.server.statistics().refusals_total[Refusal.TOO_MANY_CONNECTIONS] == 50


@trio_test
async def test_refusals_at_the_same_time_are_bounded(autojump_clock: MockClock) -> None:
    """Clients that neither ask nor read an answer hold two places and no more; the third is not accepted."""
    async with serving(Sleeper(), FULL) as site:
        await occupied(site)
        clients = [site.connect(lockstep=True) for _ in range(3)]
        await trio.testing.wait_all_tasks_blocked()
        with trio.move_on_after(0.05) as too_early:
            await clients[2].stream.send_all(b"GET")
        assert too_early.cancelled_caught
        # The two are given up after a bounded time, and the third gets its turn.
        await trio.sleep(2 * (FULL.refusal_seconds + 2 * FULL.linger_seconds))
        assert (await clients[2].read_response()).status == 503


@trio_test
async def test_the_503_follows_the_request_that_it_answers(autojump_clock: MockClock) -> None:
    """The whole upload is read before the close, so that no reset overtakes the answer; which has the
    request's own id."""
    async with serving(Sleeper(), FULL) as site:
        await occupied(site)
        client = site.connect(lockstep=True)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(client.send, post(b"x" * 1_000_000, headers=b"x-request-id: mine\r\n"))
            response = await client.read_response()
        assert (response.status, response.headers["x-request-id"]) == (503, "mine")
        assert b'"code":"too_many_connections"' in response.body


@pytest.mark.parametrize(
    ("said", "status"),
    [(b"GET / HT", 503), (b"NONSENSE\r\n\r\n", 400), (b"HEAD / HTTP/1.1\r\nhost: x\r\n\r\n", 503)],
)
@trio_test
async def test_whatever_a_refused_client_says_is_answered(
    said: bytes, status: int, autojump_clock: MockClock
) -> None:
    """Half a request gets 503 in time, nonsense 400, and the answer to HEAD has no body."""
    async with serving(Sleeper(), FULL) as site:
        await occupied(site)
        client = site.connect()
        began = trio.current_time()
        await client.send(said)
        response = await client.read_head()
        assert (response.status, trio.current_time() - began <= FULL.refusal_seconds) == (status, True)
        assert (await client.read_rest() == b"") is said.startswith(b"HEAD")


@pytest.mark.parametrize("method", [b"GET", b"HEAD"])
@trio_test
async def test_probes_are_answered_when_every_connection_is_taken(
    method: bytes, autojump_clock: MockClock
) -> None:
    """Once a connection, which then closes; any other method or path gets 503."""
    async with serving(sleeper_with_probe, FULL, always_answered=["/health"]) as site:
        await occupied(site)
        probe = site.connect()
        await probe.send(PROBE.replace(b"GET", method))
        response = await probe.read_head()
        assert (response.status, response.headers["connection"]) == (200, "close")
        assert await probe.read_rest() == (b"ok" if method == b"GET" else b"")
        for other in (b"POST /health", b"GET /healthy", b"GET /"):
            refused = await site.connect().ask(PROBE.replace(b"GET /health", other))
            assert refused.status == 503, other


@given(refusing=st.integers(0, 2000), refusals=st.integers(1, 1000), linger=st.floats(0.01, 100))
def test_a_refusal_always_has_some_time_and_never_more_than_alone(
    refusing: int, refusals: int, linger: float
) -> None:
    """And the more are being refused, the less."""
    limits = Limits(refusals=refusals, linger_seconds=linger)
    now, alone, later = (refusal_limits(limits, count) for count in (refusing, 0, refusing + 1))
    assert 0 < later.header_seconds <= now.header_seconds <= alone.header_seconds == limits.refusal_seconds
    assert 0 < later.linger_seconds <= now.linger_seconds <= alone.linger_seconds == linger
    assert now.write_seconds <= linger
