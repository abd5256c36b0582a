"""One model over two processes behind a real server: either may die, and its streams go on to the byte."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import trio

from loadtests.processes import children
from tests.end_to_end.raw_client import Answer, ask
from tests.end_to_end.serving import Served, eventually, serving
from tests.examples import sampled
from tests.fakes.faulty_backend import holding_in_engine_process

STREAMS = 6


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A file `hold` in it stops rank 0 in the middle of all streams."""
    made = tmp_path_factory.mktemp("ranks")
    (made / "sitecustomize.py").write_text(holding_in_engine_process(STREAMS, 15 * STREAMS, made))
    return made


@pytest.fixture(scope="module")
def served(folder: Path) -> Iterator[Served]:
    path = os.pathsep.join([str(folder), str(Path(__file__).parents[2])])
    with serving("--ranks", "2", trained=True, environment={"PYTHONPATH": path}) as found:
        yield found


def fields_of(number: int) -> dict[str, Any]:
    """Every second one greedy, the others sampled, some of them with penalties."""
    if number % 2 == 0:
        return {"max_tokens": 60 + 4 * number, "ignore_eos": True}
    penalties = {"presence_penalty": 0.4, "frequency_penalty": 0.3} if number % 4 == 1 else {}
    sampled = {"temperature": 0.9, "top_p": 0.95, "seed": 40 + number}
    return {"max_tokens": 60 + 4 * number, "ignore_eos": True, **sampled, **penalties}


async def ask_all(served: Served, answers: list[Answer]) -> None:
    found = [Answer()] * STREAMS

    async def one(number: int) -> None:
        text = f"agent {number} " * (number + 1)
        found[number] = await ask(served.port, text, **fields_of(number))

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


@pytest.mark.parametrize("rank", sampled([rank_0, rank_1], [rank_0]))
def test_a_killed_rank_is_a_pause(
    served: Served, folder: Path, undisturbed: list[Answer], rank: Callable[[Served], int]
) -> None:
    """Killed while all stream: every answer is that of the undisturbed run, and two new processes serve."""
    restarts = served.get("/ready")[1]["restarts"]
    resumed = served.metric("penstock_resumed_requests_total")
    processes = [rank_0(served), rank_1(served)]

    async def killed() -> list[Answer]:
        answers: list[Answer] = []
        hold, held = folder / "hold", folder / "held"
        hold.touch()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(ask_all, served, answers)
            await trio.to_thread.run_sync(eventually, held.exists, 60)
            os.kill(rank(served), signal.SIGKILL)
            held.unlink()
            hold.unlink()
        return answers

    answers = trio.run(killed)
    for number, (answer, wanted) in enumerate(zip(answers, undisturbed, strict=True)):
        assert answer.status == 200
        assert answer.errors == []
        assert answer.text == wanted.text, f"stream {number}"
        assert answer.events[-1] == "[DONE]"
    assert served.get("/ready")[1]["restarts"] == restarts + 1
    assert served.metric("penstock_resumed_requests_total") == resumed + STREAMS
    assert not {rank_0(served), rank_1(served)} & set(processes)
