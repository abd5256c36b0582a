"""Many requests that come at one moment begin over many passes of the event loop."""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from itertools import pairwise

import pytest
import trio
import trio.testing
from starlette.types import Receive, Scope, Send
from trio.testing import MockClock, trio_test

from api.http.beginnings import AT_ONCE
from api.http.limits import Limits
from tests.api.http.wire import GET, Client, Site, post, read_body, respond, serving

PROBE = b"GET /health HTTP/1.1\r\nhost: x\r\n\r\n"
MANY = 200


@dataclass(eq=False)
class Counted(trio.abc.Instrument):
    """An application that notes in which pass of the loop each request began, and its body was whole; and
    how many requests were refused before each pass."""

    site: Site | None = None
    passes: int = 0
    refused: list[int] = field(default_factory=list)
    begun: list[int] = field(default_factory=list)
    read: list[tuple[bytes, int]] = field(default_factory=list)
    probed: list[int] = field(default_factory=list)
    may_answer: trio.Event = field(default_factory=trio.Event)

    def before_io_wait(self, timeout: float) -> None:
        self.passes += 1
        assert self.site is not None
        self.refused.append(self.site.server.statistics().refusals_total.total())

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["path"] == "/health":
            self.probed.append(self.passes)
            if scope["query_string"]:
                await self.may_answer.wait()
        else:
            self.begun.append(self.passes)
            body = await read_body(receive)
            self.read.append((body, self.passes))
        await respond(send, b"")


@asynccontextmanager
async def counted(limits: Limits | None = None) -> AsyncIterator[tuple[Counted, list[Client]]]:
    app = Counted()
    async with serving(app, limits, always_answered=["/health"]) as app.site:
        clients = [app.site.connect() for _ in range(MANY)]
        await trio.testing.wait_all_tasks_blocked()
        trio.lowlevel.add_instrument(app)
        yield app, clients
        trio.lowlevel.remove_instrument(app)


async def send_together(clients: Sequence[Client], data: Callable[[int], bytes]) -> None:
    """Send to all in one pass, and wait until nothing more happens."""
    async with trio.open_nursery() as nursery:
        for number, client in enumerate(clients):
            nursery.start_soon(client.send, data(number))
    await trio.testing.wait_all_tasks_blocked()


@pytest.mark.parametrize("cut", [0, 1, 30, -1], ids=["at once", "method", "head", "body"])
@trio_test
async def test_few_begin_in_a_pass(cut: int, autojump_clock: MockClock) -> None:
    """Wherever the first part of a request ended."""
    async with counted() as (app, clients):
        if cut:
            await send_together(clients, lambda number: post(b"%d" % number)[:cut])
            assert app.read == []
        await send_together(clients, lambda number: post(b"%d" % number)[cut:])
        assert {int(body) for body, _ in app.read} == set(range(MANY))
        assert max(Counter(number for _, number in app.read).values()) <= AT_ONCE
        assert {(await client.read_response()).status for client in clients} == {200}
        app.begun.clear()
        await send_together(clients, lambda number: GET)
        assert len(app.begun) == MANY
        assert max(Counter(app.begun).values()) <= AT_ONCE


@trio_test
async def test_few_heads_are_read_in_a_pass(autojump_clock: MockClock) -> None:
    """Reading one takes as long as a tenth of its beginning. These are refused when they are read."""
    async with counted() as (app, clients):
        await send_together(clients, lambda number: b"POST / HTTP/1.1\r\n\r\n")
        assert app.refused[-1] == MANY
        assert max(later - earlier for earlier, later in pairwise(app.refused)) <= AT_ONCE


@trio_test
async def test_a_probe_does_not_wait_behind_them(autojump_clock: MockClock) -> None:
    """Nor does one that came while the last was answered."""
    async with counted() as (app, clients):
        await send_together(clients, lambda number: post(b"x") if number else PROBE)
        assert sum(number < app.probed[0] for number in app.begun) <= 3 * AT_ONCE
        await clients[0].send(PROBE.replace(b"/health", b"/health?slow=1"))
        await trio.testing.wait_all_tasks_blocked()
        await clients[0].send(PROBE)
        await trio.testing.wait_all_tasks_blocked()
        app.may_answer.set()
        app.begun.clear()
        await send_together(clients[1:], lambda number: post(b"x"))
        assert len(app.begun) == MANY - 1
        assert sum(number < app.probed[-1] for number in app.begun) <= 10 * AT_ONCE


@trio_test
async def test_who_is_refused_takes_no_turn(autojump_clock: MockClock) -> None:
    """A crowd beyond the limit delays nobody's beginning."""
    async with counted(Limits(connections=1, refusals=MANY)) as (app, (served, *refused)):
        async with trio.open_nursery() as nursery:
            for client in refused:
                nursery.start_soon(client.send, post(b"x"))
        await served.send(post(b"x"))
        started = app.passes
        assert (await served.read_response()).status == 200
        assert app.begun[0] - started <= 3
        assert {(await client.read_response()).status for client in refused} == {503}
