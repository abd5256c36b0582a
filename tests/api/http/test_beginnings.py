"""Many requests that come at one moment begin over many passes of the event loop."""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import pytest
import trio
import trio.testing
from trio.testing import trio_test

from api.http.asgi import Receive, Scope, Send
from api.http.beginnings import AT_ONCE
from api.http.http_scope import scope_of
from api.http.limits import Limits
from tests.api.http.wire import Client, post, read_body, respond, serving

PROBE = b"GET /health HTTP/1.1\r\nhost: x\r\n\r\n"
MANY = 200


class Passes(trio.abc.Instrument):
    """Counts passes of the event loop."""

    number = 0

    def before_io_wait(self, timeout: float) -> None:
        self.number += 1


@dataclass
class Counted:
    """An application that notes in which pass each request began, and in which its body was whole."""

    passes: Passes = field(default_factory=Passes)
    begun: list[int] = field(default_factory=list)
    read: list[tuple[bytes, int]] = field(default_factory=list)
    probed: list[int] = field(default_factory=list)
    may_answer: trio.Event = field(default_factory=trio.Event)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["path"] == "/health":
            self.probed.append(self.passes.number)
            if scope["query_string"]:
                await self.may_answer.wait()
        else:
            self.begun.append(self.passes.number)
            body = await read_body(receive)
            self.read.append((body, self.passes.number))
        await respond(send, b"")


@asynccontextmanager
async def counted() -> AsyncIterator[tuple[Counted, list[Client]]]:
    app = Counted()
    async with serving(app, always_answered=["/health"]) as site:
        clients = [site.connect() for _ in range(MANY)]
        await trio.testing.wait_all_tasks_blocked()
        trio.lowlevel.add_instrument(app.passes)
        yield app, clients
        trio.lowlevel.remove_instrument(app.passes)


async def send_together(clients: Sequence[Client], data: Callable[[int], bytes]) -> None:
    """Send to all in one pass, and wait until nothing more happens."""
    async with trio.open_nursery() as nursery:
        for number, client in enumerate(clients):
            nursery.start_soon(client.send, data(number))
    await trio.testing.wait_all_tasks_blocked()


@trio_test
async def test_few_begin_in_a_pass(autojump_clock: trio.testing.MockClock) -> None:
    async with counted() as (app, clients):
        await send_together(clients, lambda number: post(b"%d" % number))
        assert max(Counter(app.begun).values()) <= AT_ONCE
        assert {int(body) for body, _ in app.read} == set(range(MANY))
        assert {(await client.read_response()).status for client in clients} == {200}


@pytest.mark.parametrize("cut", [1, 30, -1], ids=["method", "head", "body"])
@trio_test
async def test_what_ends_together_begins_over_many_passes(
    cut: int, autojump_clock: trio.testing.MockClock
) -> None:
    """Wherever the first part of a request ended."""
    async with counted() as (app, clients):
        await send_together(clients, lambda number: post(b"%d" % number)[:cut])
        assert app.read == []
        await send_together(clients, lambda number: post(b"%d" % number)[cut:])
        assert len(app.read) == MANY
        assert max(Counter(number for _, number in app.read).values()) <= AT_ONCE


@trio_test
async def test_few_heads_are_read_in_a_pass(
    autojump_clock: trio.testing.MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Reading one takes as long as a tenth of its beginning."""
    whole, read = scope_of, list[int]()
    async with counted() as (app, clients):

        def counting(*arguments: Any) -> Scope:
            read.append(app.passes.number)
            return whole(*arguments)

        monkeypatch.setattr("api.http.connection.scope_of", counting)
        await send_together(clients, lambda number: post(b"x"))
        assert len(read) == MANY
        assert max(Counter(read).values()) <= AT_ONCE


@trio_test
async def test_a_probe_does_not_wait_behind_them(autojump_clock: trio.testing.MockClock) -> None:
    async with counted() as (app, clients):
        await send_together(clients, lambda number: post(b"x") if number else PROBE)
        assert len(app.begun) == MANY - 1
        assert sum(number < app.probed[0] for number in app.begun) <= 3 * AT_ONCE


@trio_test
async def test_nor_does_one_that_came_while_the_last_was_answered(
    autojump_clock: trio.testing.MockClock,
) -> None:
    async with counted() as (app, clients):
        await clients[0].send(PROBE.replace(b"/health", b"/health?slow=1"))
        await trio.testing.wait_all_tasks_blocked()
        await clients[0].send(PROBE)
        await trio.testing.wait_all_tasks_blocked()
        app.may_answer.set()
        await send_together(clients[1:], lambda number: post(b"x"))
        assert len(app.begun) == MANY - 1
        assert sum(number < app.probed[1] for number in app.begun) <= 10 * AT_ONCE


@trio_test
async def test_who_leaves_while_it_waits_holds_nobody_up(autojump_clock: trio.testing.MockClock) -> None:
    async with counted() as (app, clients):
        async with trio.open_nursery() as nursery:
            for number, client in enumerate(clients):
                nursery.start_soon(client.send, post(b"%d" % number))
        async with trio.open_nursery() as nursery:
            for client in clients[1::2]:
                nursery.start_soon(client.close)
        await trio.testing.wait_all_tasks_blocked()
        assert {int(body) for body, _ in app.read} >= set(range(0, MANY, 2))
        assert {(await client.read_response()).status for client in clients[::2]} == {200}


@trio_test
async def test_who_is_refused_takes_no_turn(autojump_clock: trio.testing.MockClock) -> None:
    """A crowd beyond the limit delays nobody's beginning."""
    app = Counted()
    async with serving(app, Limits(connections=1, refusals=MANY)) as site:
        served, *refused = (site.connect() for _ in range(MANY))
        await trio.testing.wait_all_tasks_blocked()
        trio.lowlevel.add_instrument(app.passes)
        async with trio.open_nursery() as nursery:
            for client in refused:
                nursery.start_soon(client.send, post(b"x"))
        await served.send(post(b"x"))
        started = app.passes.number
        assert (await served.read_response()).status == 200
        assert app.begun[0] - started <= 3
        trio.lowlevel.remove_instrument(app.passes)
        assert {(await client.read_response()).status for client in refused} == {503}
