"""Crowds on real sockets: nobody is reset. Real time."""

from __future__ import annotations

import resource
import socket
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, suppress

import pytest
import trio
from trio.testing import trio_test

from api.http.asgi import Receive, Scope, Send
from api.http.limits import Limits
from api.http.refusals import Refusal
from tests.api.http.test_sockets import listening
from tests.api.http.wire import GET, Client, Sleeper, post, respond

CROWD = 5000
SPARE = 200
"""Descriptors of the test run itself."""


async def _answers(port: int, requests: list[bytes]) -> Counter[int | str]:
    """Connect all, then ask with all: status of each, or the name of what came instead of an answer."""
    heard: Counter[int | str] = Counter()
    connected = 0
    everybody = trio.Event()

    async def one(request: bytes) -> None:
        nonlocal connected
        connection = trio.socket.socket(socket.AF_INET, socket.SOCK_STREAM)
        with connection:
            try:
                await connection.connect(("127.0.0.1", port))
                connected += 1
                if connected == len(requests):
                    everybody.set()
                with trio.move_on_after(2):
                    # Some wait in the listen backlog's queue of SYNs until others are accepted.
                    await everybody.wait()
                client = Client(trio.SocketStream(connection))
                # The refusal may come before the request is sent; it can be read all the same.
                with suppress(trio.BrokenResourceError):
                    await client.send(request)
                with trio.move_on_after(400) as too_late:
                    heard[(await client.read_response()).status] += 1
                if too_late.cancelled_caught:
                    heard["silence"] += 1
            except (OSError, EOFError, trio.BrokenResourceError) as error:
                heard[type(error).__name__] += 1

    async with trio.open_nursery() as nursery:
        for request in requests:
            nursery.start_soon(one, request)
    return heard


@trio_test
async def test_300_beyond_a_limit_of_16_all_read_503() -> None:
    """Some clients send a request, some an upload, and some only connect."""
    async with listening(Sleeper(), Limits(connections=16, refusals=32)) as port:
        for _ in range(16):
            await (await port.connect()).send(GET)
        heard = await _answers(port.number, [GET, post(b"x" * 20_000), b""] * 100)
        assert heard == {503: 300}


@contextmanager
def soft_limit(descriptors: int) -> Iterator[None]:
    """Raise the soft limit of open files for the block. Skip the test if the hard limit is lower."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard != resource.RLIM_INFINITY and hard < descriptors:
        pytest.skip(f"needs {descriptors} open files; the hard limit is {hard} (ulimit -Hn)")
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, descriptors), hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


@pytest.mark.timeout(600)
@trio_test
async def test_5000_at_once_are_all_answered() -> None:
    """Every one gets an HTTP answer: those within the limit, which hold their connections until 500 are
    refused, and those beyond. Then the next is served as ever."""
    limits = Limits()
    crowded = trio.Event()

    async def slow(scope: Scope, receive: Receive, send: Send) -> None:
        await crowded.wait()
        await respond(send, b"")

    async def watch() -> None:
        while port.server.statistics().refusals_total[Refusal.TOO_MANY_CONNECTIONS] < 500:  # noqa: ASYNC110
            await trio.sleep(0.1)
        crowded.set()

    with soft_limit(CROWD + limits.connections + limits.refusals + SPARE):
        async with listening(slow, limits, seconds=500) as port:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(watch)
                heard = await _answers(port.number, [GET] * CROWD)
            assert set(heard) == {200, 503}, heard
            assert heard.total() == CROWD
            assert (await (await port.connect()).ask(GET)).status == 200
