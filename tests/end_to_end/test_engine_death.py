"""Kills of real engine processes: their clients notice only a pause."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

import pytest

from loadtests.processes import children
from tests.end_to_end.raw_client import answers, check_the_same
from tests.end_to_end.serving import Served, at_start, eventually, serving
from tests.fakes.faulty_backend import MOST_STEP_TOKENS, holding_in_engine_process


def agents(count: int, tokens: int) -> list[tuple[str, dict[str, Any]]]:
    """Every second one greedy, the others sampled, some of them with penalties; of different lengths.

    Float32 is not exact: a row's last bits depend on the batch and on whether a token was decoded or
    prefilled, and one in some thousand sampled tokens is so near an edge that they decide it, with or without
    a death. These seeds have none within these lengths.
    """
    asked = []
    for number in range(count):
        fields: dict[str, Any] = {"max_tokens": tokens + 4 * number, "ignore_eos": True}
        if number % 2:
            fields |= {"temperature": 0.9, "top_p": 0.95, "seed": 40 + number}
        if number % 4 == 1:
            fields |= {"presence_penalty": 0.4, "frequency_penalty": 0.3}
        asked.append((f"agent {number} " * (number + 1), fields))
    return asked


def test_under_16_streams_all_go_on_to_the_byte(tmp_path: Path) -> None:
    """On real MLX, greedy and sampled, crashed in the middle of all: `/ready` returns 503 and then 200 again,
    and each answer equals that of an undisturbed run."""
    asked = agents(16, 80)
    hold, held = tmp_path / "hold", tmp_path / "held"
    environment = at_start(tmp_path, holding_in_engine_process(16, 16 * 20, tmp_path))
    with serving(environment=environment) as served:
        expected = answers(served.port, asked)
        hold.touch()

        def crash() -> None:
            eventually(held.exists)
            os.kill(served.engine_pid(), signal.SIGSEGV)
            hold.unlink()
            eventually(lambda: served.get("/ready")[0] == 503)

        check_the_same(answers(served.port, asked, crash), expected)
        status, ready = served.get("/ready")
        assert (status, ready["restarts"]) == (200, 1)
        assert served.metric("penstock_resumed_requests_total") == 16
        # The server's output is read by a thread of its own.
        eventually(lambda: any('"engine_died"' in line and "SIGSEGV" in line for line in served.log))
        _, report = served.get("/v1/scheduler")
        assert (report["restarts"], report["last_death_cause"]) == (1, "crashed")
        assert served.metric("penstock_engine_restarts_total", 'cause="crashed"') == 1


def test_a_stopped_engine_is_killed_and_its_streams_go_on() -> None:
    """SIGSTOP: the process lives and does nothing. After --stall-seconds it is declared hung; it continues
    only to write its stacks to the log."""
    asked = [("the same", {"max_tokens": 100})]
    options = ("--scripted", "step_seconds=0.01", "--stall-seconds", "4")
    with serving("--engine", "scripted", *options) as served:
        expected = answers(served.port, asked)
        before = served.metric("penstock_generated_tokens_total")

        def stop() -> None:
            eventually(lambda: served.metric("penstock_generated_tokens_total") > before + 3)
            os.kill(served.engine_pid(), signal.SIGSTOP)

        check_the_same(answers(served.port, asked, stop), expected)
        assert served.metric("penstock_engine_restarts_total", 'cause="hung"') == 1
        eventually(lambda: any("Fatal Python error: Aborted" in line for line in served.log))


ENGINES = ("0", "1")
_MIDDLE_TOKENS = 60
"""By each of both engines, when one of them is killed."""


@pytest.mark.slow
@pytest.mark.timeout(180)
def test_streams_of_a_dead_engine_go_on_at_the_other(tmp_path: Path) -> None:
    asked, hold = agents(12, 100), tmp_path / "hold"
    tokens = _MIDDLE_TOKENS + len(asked) * MOST_STEP_TOKENS
    environment = at_start(tmp_path, holding_in_engine_process(1, tokens, tmp_path))
    with serving("--engines", "2", environment=environment, trained=True) as pair:
        eventually(lambda: [one["condition"] for one in engines(pair)] == ["ready"] * len(ENGINES))
        expected = answers(pair.port, asked)
        before = generated(pair)
        hold.touch()

        def kill() -> None:
            eventually(lambda: min(map(float.__sub__, generated(pair), before)) >= _MIDDLE_TOKENS)
            os.kill(children(pair.process.pid)[0], signal.SIGKILL)
            hold.unlink()

        check_the_same(answers(pair.port, asked, kill), expected)
        eventually(lambda: sum(one["restarts"] for one in engines(pair)) == 1)
        assert pair.metric("penstock_resumed_requests_total") > 0
        assert "killed" in [one["last_death_cause"] for one in engines(pair)]


def engines(served: Served) -> list[dict[str, Any]]:
    return list(served.get("/v1/scheduler")[1]["engines"])


def generated(served: Served) -> list[float]:
    """Tokens, by engine: totals, so that a busy machine misses no moment."""
    return [served.metric("penstock_generated_tokens_total", f'engine="{name}"') for name in ENGINES]
