"""Mutated requests: each gets an answer or a refusal, and the next client is served."""

from __future__ import annotations

import hypothesis
import trio
import trio.testing
from hypothesis import strategies as st

from tests.api.http.wire import GET, echo, post, serving
from tests.examples import examples
from tests.fakes.mutation import mutations

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

    trio.run(run, clock=trio.testing.MockClock(autojump_threshold=0))
