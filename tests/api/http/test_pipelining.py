"""Several requests on one connection, in pieces of any size."""

from __future__ import annotations

from itertools import pairwise

import hypothesis
import trio
import trio.testing
from hypothesis import strategies as st
from starlette.types import Receive, Scope, Send
from trio.testing import trio_test

from api.http.limits import Limits
from tests.api.http.wire import GET, Client, echo, post, post_chunked, respond, serving
from tests.examples import examples

REQUESTS = [
    (post(b'{"a":1}'), b'POST / {"a":1}'),
    (GET, b"GET / "),
    (post_chunked(b"he", b"llo"), b"POST / hello"),
    (post(b""), b"POST / "),
    (post(b'{"b":2}' * 20), b"POST / " + b'{"b":2}' * 20),
]


@trio_test
async def test_no_more_is_read_ahead_than_the_bound(autojump_clock: trio.testing.MockClock) -> None:
    """A client that pipelines without end must wait; its requests are not buffered."""
    release = trio.Event()

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        await release.wait()
        await respond(send, b"ok")

    async with serving(app, Limits(read_ahead_bytes=100)) as site:
        client = Client(site.listener.connect(lockstep=True))
        taken = 0
        with trio.move_on_after(5):
            await client.send(GET)
            while True:
                await client.send(GET)
                taken += len(GET)
        assert taken < 200
        release.set()
        assert (await client.read_response()).body == b"ok"


def _pieces(wire: bytes, cuts: list[int]) -> list[bytes]:
    edges = [0, *sorted({cut % len(wire) for cut in cuts}), len(wire)]
    return [wire[a:b] for a, b in pairwise(edges) if a < b]


@hypothesis.settings(deadline=None, max_examples=examples(100))
@hypothesis.given(
    order=st.lists(st.sampled_from(REQUESTS), min_size=1, max_size=4),
    cuts=st.lists(st.integers(min_value=0, max_value=2000), max_size=30),
    read_ahead=st.sampled_from([1, 7, 64, 65536]),
    patience=st.booleans(),
)
def test_how_the_bytes_are_cut_changes_nothing(
    order: list[tuple[bytes, bytes]], cuts: list[int], read_ahead: int, patience: bool
) -> None:
    """Any re-chunking of the requests' bytes gives the same responses, one after the other: room is made by
    what the application takes, and one request runs at a time."""
    running = 0

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        nonlocal running
        running += 1
        assert running == 1
        await echo(scope, receive, send)
        await trio.lowlevel.checkpoint()
        running -= 1

    async def run() -> None:
        async with serving(app, Limits(read_ahead_bytes=read_ahead)) as site:
            client = site.connect()
            for piece in _pieces(b"".join(request for request, _ in order), cuts):
                await client.send(piece)
                if patience:
                    await trio.testing.wait_all_tasks_blocked()
            for _, answer in order:
                assert (await client.read_response()).body == answer

    trio.run(run, clock=trio.testing.MockClock(autojump_threshold=0))
