"""Several requests on one connection: in pieces of any size, and mutated."""

from __future__ import annotations

from itertools import pairwise

import hypothesis
import trio
import trio.testing
from hypothesis import strategies as st
from starlette.types import Receive, Scope, Send
from trio.testing import MockClock, trio_test

from api.http.limits import Limits
from tests.api.http.wire import GET, Client, echo, post, post_chunked, respond, serving
from tests.examples import examples
from tests.fakes.mutation import mutations

REQUESTS = [
    (post(b'{"a":1}'), b'POST / {"a":1}'),
    (GET, b"GET / "),
    (post_chunked(b"he", b"llo"), b"POST / hello"),
    (post(b""), b"POST / "),
    (post(b'{"b":2}' * 20), b"POST / " + b'{"b":2}' * 20),
]


@trio_test
async def test_no_more_is_read_ahead_than_the_bound(autojump_clock: MockClock) -> None:
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

    trio.run(run, clock=MockClock(autojump_threshold=0))


CHUNKED = (
    b"POST /c HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\n2\r\nhe\r\n3;x=y\r\nend\r\n0\r\n\r\n"
)
HEADERS = (
    b"GET /h HTTP/1.1\r\nhost: x\r\naccept: */*\r\nconnection: keep-alive\r\nexpect: 100-continue\r\n\r\n"
)
_LONGER_THAN_ANY_DEADLINE = 1000.0

wires = mutations(
    st.lists(st.sampled_from([GET, post(b'{"a": 1}'), CHUNKED, HEADERS]), min_size=1, max_size=3).map(
        b"".join
    )
)


@hypothesis.settings(deadline=None, max_examples=examples(300))
@hypothesis.given(wire=wires, stays=st.booleans())
def test_no_bytes_break_the_server_or_hold_it(wire: bytes, stays: bool) -> None:
    """No 500, no reported error, no connection that never ends, and no remaining task."""

    async def run() -> None:
        async with serving(echo) as site:
            await trio.testing.wait_all_tasks_blocked()
            tasks = trio.lowlevel.current_statistics().tasks_living
            client = site.connect()
            await client.send(wire)
            if not stays:
                await client.stream.send_eof()
            with trio.fail_after(_LONGER_THAN_ANY_DEADLINE):
                heard = await client.read_rest()
            assert b"HTTP/1.1 500" not in heard
            assert (await site.connect().ask(GET)).status == 200
            await client.close()
            await trio.sleep(_LONGER_THAN_ANY_DEADLINE)
            assert site.server.statistics().open_connections == 0
            assert trio.lowlevel.current_statistics().tasks_living == tasks

    trio.run(run, clock=MockClock(autojump_threshold=0))
