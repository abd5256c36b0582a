"""Decisions by OpenAI's own client and its tool runner: the same numbers alone, together, behind hits, and
after a killed engine. Other libraries' are in `clients/`."""

from __future__ import annotations

import os
import signal
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import openai
import pytest
from openai.lib.decisions_tool_runner import DecisionsToolRunner

from tests.end_to_end.serving import Served, eventually, serving

STATE = "The hunter saw a wolf near the river. " * 12
QUESTIONS: list[Any] = [
    {"type": "predicate", "instructions": f"Statement {at}: the hunter saw {what}."}
    for at, what in enumerate(("a wolf", "a bear", "nothing", "the river") * 30)
]


def client_of(served: Served) -> openai.OpenAI:
    return openai.OpenAI(base_url=f"{served.url}/v1", api_key="unused", max_retries=0)


def probabilities(served: Served, questions: Sequence[Any]) -> list[float]:
    with client_of(served) as client:
        decision = client.decisions.create(model="penstock-embedded", input=STATE, questions=questions)
    return [answer.probability for answer in decision.answers if answer.type == "predicate"]


def test_the_tool_runner_picks_and_ends(embedded: Served) -> None:
    done: list[str] = []

    def candidates(observation: object) -> list[Any]:
        actions = (
            [] if done else [{"id": "look", "description": "look", "execute": lambda: done.append("look")}]
        )
        return [*actions, {"id": "finish", "description": "the task is done", "done": True}]

    runner = DecisionsToolRunner(observe=lambda: f"done: {done}", candidates=candidates)
    with client_of(embedded) as client:
        result = runner.run(
            client, {"model": "penstock-embedded", "input": "Look at the river."}, max_steps=3
        )
    assert result["status"] == "unverified"
    assert result["completed_candidate_ids"] == done


def test_a_killed_engine_changes_no_number() -> None:
    """Each question alone, all at once behind one state, and all again while their engine dies."""
    with serving(trained=True) as served, ThreadPoolExecutor() as threads:
        alone = [probabilities(served, [question])[0] for question in QUESTIONS[:8]]
        together = probabilities(served, QUESTIONS)
        assert together[:8] == pytest.approx(alone, abs=1e-5)
        # Stopped, it has none of them answered before it dies.
        os.kill(victim := served.engine_pid(), signal.SIGSTOP)
        again = threads.submit(probabilities, served, QUESTIONS)
        eventually(lambda: served.metric("penstock_engine_requests") > 4)
        os.kill(victim, signal.SIGKILL)
        assert again.result() == pytest.approx(together, abs=1e-5)
        assert served.engine_pid() != victim
