"""One model over two processes behind a real server: either may die, and its streams go on to the byte."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import trio

from loadtests.processes import children
from tests.end_to_end.raw_client import Answer, ask
from tests.end_to_end.serving import Served, serving

STREAMS = 6


@pytest.fixture(scope="module")
def served() -> Iterator[Served]:
    with serving("--ranks", "2", trained=True) as found:
        yield found


def fields_of(number: int) -> dict[str, Any]:
    """Every second one greedy, the others sampled, some of them with penalties."""
    if number % 2 == 0:
        return {"max_tokens": 120 + 4 * number, "ignore_eos": True}
    penalties = {"presence_penalty": 0.4, "frequency_penalty": 0.3} if number % 4 == 1 else {}
    sampled = {"temperature": 0.9, "top_p": 0.95, "seed": 40 + number}
    return {"max_tokens": 120 + 4 * number, "ignore_eos": True, **sampled, **penalties}


async def ask_all(
    served: Served, answers: list[Answer], on_data: Callable[[bytes], None] = lambda _: None
) -> None:
    found = [Answer()] * STREAMS

    async def one(number: int) -> None:
        text = f"agent {number} " * (number + 1)
        found[number] = await ask(served.port, text, on_data=on_data, **fields_of(number))

    async with trio.open_nursery() as nursery:
        for number in range(STREAMS):
            nursery.start_soon(one, number)
    answers.extend(found)


@pytest.fixture(scope="module")
def undisturbed(served: Served) -> list[Answer]:
    answers: list[Answer] = []
    trio.run(ask_all, served, answers)
    return answers


def rank_0(served: Served) -> int:
    return served.engine_pid()


def rank_1(served: Served) -> int:
    (pid,) = children(served.engine_pid())
    return pid


@pytest.mark.parametrize("rank", [rank_0, rank_1])
def test_a_killed_rank_is_a_pause(
    served: Served, undisturbed: list[Answer], rank: Callable[[Served], int]
) -> None:
    """Killed while all stream: every answer is that of the undisturbed run, and two new processes serve."""
    restarts = served.get("/ready")[1]["restarts"]
    processes = [rank_0(served), rank_1(served)]

    async def killed() -> list[Answer]:
        answers: list[Answer] = []
        pid = rank(served)
        events = 0

        def kill_in_the_middle(data: bytes) -> None:
            nonlocal events
            before = events
            events += data.count(b"data: ")
            if before < 15 * STREAMS <= events:
                os.kill(pid, signal.SIGKILL)

        await ask_all(served, answers, kill_in_the_middle)
        return answers

    answers = trio.run(killed)
    for number, (answer, wanted) in enumerate(zip(answers, undisturbed, strict=True)):
        assert answer.status == 200
        assert answer.errors == []
        assert answer.text == wanted.text, f"stream {number}"
        assert answer.events[-1] == "[DONE]"
    assert served.get("/ready")[1]["restarts"] == restarts + 1
    assert served.metric("penstock_resumed_requests_total") > 0
    assert not {rank_0(served), rank_1(served)} & set(processes)
