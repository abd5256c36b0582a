"""Many clients at once: all are served, none delays another, and nothing is left behind."""

from __future__ import annotations

import trio

from tests.end_to_end.raw_client import answers, request_bytes
from tests.end_to_end.serving import Served, eventually, serving


def idle(served: Served) -> bool:
    """Nothing queued, nothing with the engine, no cache held."""
    names = (
        "penstock_queued_requests",
        "penstock_engine_requests",
        "penstock_running_slots",
        "penstock_kv_bytes",
    )
    return all(served.metric(name) == 0 for name in names)


def test_a_hundred_clients_on_eight_slots_all_finish() -> None:
    """On the real engine: every client gets its whole answer, and equal prompts get equal answers. When a
    hundred others leave in the middle of theirs, the cache's bytes return to zero."""
    with serving("--max-slots", "8") as served:
        asked = [(f"client {number % 10}", {"max_tokens": 12}) for number in range(100)]
        said = answers(served.port, asked)
        assert [answer.status for answer in said] == [200] * 100
        assert {answer.finish_reason for answer in said} == {"length"}
        texts = [answer.text for answer in said]
        assert sorted(texts.count(text) for text in set(texts)) == [10] * 10
        assert idle(served)
        assert served.metric("penstock_requests_total", 'outcome="length"') == 100
        trio.run(leave_in_the_middle, served.port)
        # 100 answers of 5,000 tokens would take minutes.
        eventually(lambda: idle(served))
        assert served.metric("penstock_requests_total", 'outcome="length"') == 100


async def leave_in_the_middle(port: int) -> None:
    """A hundred clients: of some the request is queued, others have tokens."""

    async def one(number: int) -> None:
        async with await trio.open_tcp_stream("127.0.0.1", port) as connection:
            await connection.send_all(request_bytes(f"client {number}", max_tokens=5000))
            with trio.move_on_after(0.02 * (number % 25)):
                while await connection.receive_some():
                    pass

    async with trio.open_nursery() as nursery:
        for number in range(100):
            nursery.start_soon(one, number)
