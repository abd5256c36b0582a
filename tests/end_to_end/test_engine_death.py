"""Kills of a real engine process: its clients notice only a pause."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

import pytest
import trio

from tests.end_to_end.raw_client import Answer, ask
from tests.end_to_end.serving import Served, eventually, serving, start
from tests.fakes.faulty_backend import holding_in_engine_process


def fields_of(number: int) -> dict[str, Any]:
    """Every second one greedy, the others sampled, some of them with penalties; of different lengths.

    Float32 is not exact: a row's last bits depend on the batch and on whether a token was decoded or
    prefilled, and one in some thousand sampled tokens is so near an edge that they decide it, with or without
    a death. These seeds have none within these lengths.
    """
    if number % 2 == 0:
        return {"max_tokens": 80 + 4 * number}
    penalties = {"presence_penalty": 0.4, "frequency_penalty": 0.3} if number % 4 == 1 else {}
    return {
        "max_tokens": 80 + 4 * number,
        "temperature": 0.9,
        "top_p": 0.95,
        "seed": 40 + number,
        **penalties,
    }


async def ask_sixteen(served: Served) -> list[Answer]:
    answers = [Answer()] * 16

    async def one(number: int) -> None:
        answers[number] = await ask(served.port, f"agent {number} " * (number + 1), **fields_of(number))

    async with trio.open_nursery() as nursery:
        for number in range(16):
            nursery.start_soon(one, number)
    return answers


def check_the_same(answers: list[Answer], expected: list[Answer]) -> None:
    for number, (answer, wanted) in enumerate(zip(answers, expected, strict=True)):
        assert answer.status == 200
        assert answer.errors == []
        assert answer.text == wanted.text, f"stream {number}"
        assert answer.finish_reason == wanted.finish_reason
        assert answer.events.count("[DONE]") == 1
        assert answer.events[-1] == "[DONE]"


def test_under_16_streams_all_go_on_to_the_byte(tmp_path: Path) -> None:
    """On real MLX, greedy and sampled, crashed in the middle of all: `/ready` returns 503 and then 200 again,
    and each answer equals that of an undisturbed run."""
    (tmp_path / "sitecustomize.py").write_text(holding_in_engine_process(16, 16 * 20, tmp_path))
    with serving(environment=python_path(tmp_path)) as served:
        expected = trio.run(ask_sixteen, served)

        async def killed() -> list[Answer]:
            answers: list[Answer] = []

            async def all_of_them() -> None:
                answers.extend(await ask_sixteen(served))

            hold, held = tmp_path / "hold", tmp_path / "held"
            hold.touch()
            async with trio.open_nursery() as nursery:
                nursery.start_soon(all_of_them)
                await trio.to_thread.run_sync(eventually, held.exists, 60)
                os.kill(served.engine_pid(), signal.SIGSEGV)
                hold.unlink()
                await trio.to_thread.run_sync(eventually, lambda: served.get("/ready")[0] == 503, 60)
            return answers

        check_the_same(trio.run(killed), expected)
        assert served.get("/ready")[0] == 200
        assert served.get("/ready")[1]["restarts"] == 1
        assert served.metric("penstock_resumed_requests_total") == 16
        # The server's output is read by a thread of its own.
        eventually(lambda: any('"engine_died"' in line and "SIGSEGV" in line for line in served.log))
        _, report = served.get("/v1/scheduler")
        assert (report["restarts"], report["last_death_cause"]) == (1, "crashed")
        assert served.metric("penstock_engine_restarts_total", 'cause="crashed"') == 1


def test_a_stopped_engine_is_killed_and_its_streams_go_on() -> None:
    """SIGSTOP: the process lives and does nothing. After --stall-seconds it is declared hung; it continues
    only to write its stacks to the log."""
    plan = "step_seconds=0.01"
    with serving("--engine", "scripted", "--scripted", plan, "--stall-seconds", "4") as served:

        async def main() -> tuple[list[Answer], Answer]:
            expected = await ask(served.port, "the same", max_tokens=100)
            answers: list[Answer] = []

            async def one() -> None:
                answers.append(await ask(served.port, "the same", max_tokens=100))

            async with trio.open_nursery() as nursery:
                before = served.metric("penstock_generated_tokens_total")
                nursery.start_soon(one)
                await trio.to_thread.run_sync(
                    eventually, lambda: served.metric("penstock_generated_tokens_total") > before + 3
                )
                os.kill(served.engine_pid(), signal.SIGSTOP)
            return answers, expected

        answers, expected = trio.run(main)
        check_the_same(answers, [expected])
        assert served.metric("penstock_engine_restarts_total", 'cause="hung"') == 1
        eventually(lambda: any("Fatal Python error: Aborted" in line for line in served.log))


def python_path(folder: Path) -> dict[str, str]:
    return {"PYTHONPATH": os.pathsep.join([str(folder), str(Path(__file__).parents[2])])}


@pytest.mark.long
def test_a_drain_during_a_restart_ends_when_the_answers_do() -> None:
    """SIGTERM while there is no engine: the next one finishes the accepted requests, and the exit is
    clean."""
    with start("--engine", "scripted", "--scripted", "step_seconds=0.01") as served:

        async def main() -> list[Answer]:
            answers: list[Answer] = []

            async def one() -> None:
                answers.append(await ask(served.port, max_tokens=60))

            async with trio.open_nursery() as nursery:
                nursery.start_soon(one)
                await trio.to_thread.run_sync(
                    eventually, lambda: served.metric("penstock_generated_tokens_total") > 3
                )
                os.kill(served.engine_pid(), signal.SIGKILL)
                served.process.send_signal(signal.SIGTERM)
            return answers

        [answer] = trio.run(main)
        assert (answer.errors, answer.finish_reason) == ([], "length")
        assert served.process.wait(60) == 0
