"""Many clients at once: all are served, none delays another, and nothing is left behind."""

from __future__ import annotations

import random

import trio

from loadtests.processes import open_files
from tests.end_to_end.raw_client import Answer, ask, request_bytes
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
    """On the real engine: every client gets its whole answer, and equal prompts get equal answers."""
    with serving("--max-slots", "8") as served:

        async def crowd() -> list[Answer]:
            answers: list[Answer] = []

            async def one(number: int) -> None:
                answers.append(await ask(served.port, f"client {number % 10}", max_tokens=12))

            with trio.fail_after(90):
                async with trio.open_nursery() as nursery:
                    for number in range(100):
                        nursery.start_soon(one, number)
            return answers

        answers = trio.run(crowd)
        assert [answer.status for answer in answers] == [200] * 100
        assert {answer.finish_reason for answer in answers} == {"length"}
        texts = [answer.text for answer in answers]
        assert sorted(texts.count(text) for text in set(texts)) == [10] * 10
        assert idle(served)
        assert served.metric("penstock_requests_total", 'outcome="length"') == 100


def test_a_thousand_hang_ups_leave_nothing_behind() -> None:
    """Clients that leave at random moments (queued, prefilling, decoding, streamed or not): afterwards no
    slot, no queue entry, no cache is in use, each request has one outcome, and service goes on."""
    plan = "step_seconds=0.001,prefill_tokens_per_step=20"
    with serving("--engine", "scripted", "--scripted", plan, "--max-slots", "8") as served:
        rng = random.Random(20)

        async def leave_early(stay_seconds: float, stream: bool) -> None:
            async with await trio.open_tcp_stream("127.0.0.1", served.port) as connection:
                await connection.send_all(
                    request_bytes("x" * rng.randrange(200), max_tokens=200, stream=stream)
                )
                with trio.move_on_after(stay_seconds):
                    while await connection.receive_some():
                        pass

        # What the server holds for its engine is there.
        eventually(lambda: served.metric("penstock_engine_up") == 1)
        before = open_files(served.process.pid)

        async def crowd() -> None:
            limiter = trio.CapacityLimiter(100)

            async def one(number: int) -> None:
                async with limiter:
                    await leave_early(rng.choice((0.0, 0.02, 0.2, 0.5)), number % 3 != 0)

            async with trio.open_nursery() as nursery:
                for number in range(1000):
                    nursery.start_soon(one, number)

        trio.run(crowd)
        eventually(lambda: idle(served), 20)
        outcomes = sum(
            served.metric("penstock_requests_total", f'outcome="{outcome}"')
            for outcome in ("stop", "length", "cancelled", "deadline", "rejected", "invalid", "error")
        )
        assert served.metric("penstock_requests_total", 'outcome="error"') == 0
        assert served.metric("penstock_requests_total", 'outcome="cancelled"') > 300
        # A client that left before its request was accepted has none; no request has two.
        assert outcomes <= 1000
        answer = trio.run(ask, served.port)
        assert answer.finish_reason == "length"
        # No connection; a little slack for the server's own files.
        eventually(lambda: open_files(served.process.pid) <= before + 2)


def test_real_rows_are_freed_when_their_clients_leave(random_weights: Served) -> None:
    """The same on MLX: a hundred clients leave in the middle, and the cache's bytes return to zero."""

    async def crowd() -> None:
        async def one(number: int) -> None:
            async with await trio.open_tcp_stream("127.0.0.1", random_weights.port) as connection:
                await connection.send_all(request_bytes(f"client {number}", max_tokens=5000))
                with trio.move_on_after(0.02 * (number % 25)):
                    while await connection.receive_some():
                        pass

        async with trio.open_nursery() as nursery:
            for number in range(100):
                nursery.start_soon(one, number)

    def whole() -> float:
        return random_weights.metric("penstock_requests_total", 'outcome="length"')

    before = whole()
    trio.run(crowd)
    # 100 answers of 5,000 tokens would take minutes.
    eventually(lambda: idle(random_weights), 60)
    assert whole() == before
