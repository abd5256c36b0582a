"""Crowds on real sockets: nobody is reset. Real time."""

from __future__ import annotations

import socket
from collections import Counter
from contextlib import suppress

import trio
from trio.testing import trio_test

from api.http.limits import Limits
from tests.api.http.test_sockets import listening
from tests.api.http.wire import GET, Client, Sleeper, post


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
