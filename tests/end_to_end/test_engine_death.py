"""SIGKILL of the engine process: its clients hear of it at once, and service goes on."""

from __future__ import annotations

import os
import signal

import trio

from tests.end_to_end.raw_client import Answer, ask
from tests.end_to_end.serving import eventually, serving


def test_under_32_streams_each_gets_one_error_and_the_next_request_succeeds() -> None:
    """On real MLX: one error event each in under a second, `/ready` says 503 and then 200 again."""
    with serving() as served:

        async def main() -> tuple[list[Answer], float]:
            answers: list[Answer] = []
            killed_at = 0.0

            async def one(number: int) -> None:
                answers.append(await ask(served.port, f"agent {number}", max_tokens=10_000))

            async with trio.open_nursery() as nursery:
                for number in range(32):
                    nursery.start_soon(one, number)
                await trio.to_thread.run_sync(
                    eventually, lambda: served.metric("penstock_running_slots") == 32, 30
                )
                await trio.sleep(0.3)
                os.kill(served.engine_pid(), signal.SIGKILL)
                killed_at = trio.current_time()
            return answers, killed_at

        answers, killed_at = trio.run(main)
        for answer in answers:
            assert answer.status == 200
            assert [error["code"] for error in answer.errors] == ["engine_lost"]
            assert answer.events[-1] == "[DONE]"
            assert len(answer.events) > 2, "the stream had not begun"
            assert answer.stamps[-1] - killed_at < 1.0
        assert served.get("/ready")[0] == 503
        # Accepted while there is no engine: it waits, and is served by the next one.
        answer = trio.run(ask, served.port)
        assert answer.finish_reason == "length"
        eventually(lambda: served.get("/ready")[0] == 200)
        assert served.get("/ready")[1]["restarts"] == 1
        assert served.metric("penstock_kv_bytes") == 0
        assert any('"engine_died"' in line and "SIGKILL" in line for line in served.log)


def test_an_engine_that_keeps_dying_is_replaced_every_time() -> None:
    """Scripted, dead after every 40 steps: requests fail or finish, each with one ending, and the
    service outlives five engines."""
    plan = "step_seconds=0.001,die_at_step=40"
    with serving("--engine", "scripted", "--scripted", plan, "--max-slots", "4") as served:

        async def main() -> list[Answer]:
            answers: list[Answer] = []
            with trio.fail_after(60):
                while not answers or sum(bool(answer.errors) for answer in answers) < 5:
                    answers.append(await ask(served.port, f"request {len(answers)}"))
            return answers

        answers = trio.run(main)
        for answer in answers:
            assert (answer.finish_reason == "length") != bool(answer.errors)
        assert served.metric("penstock_engine_deaths_total") == 5
