"""Decisions by OpenAI's own client and its tool runner: the same numbers alone, together, behind hits, and
after a killed engine."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Sequence
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
CHOICE: Any = {
    "type": "choice",
    "name": "animal",
    "instructions": "Which animal is it?",
    "choices": [{"value": value} for value in ("wolf", "bear", False)],
}


def client_of(served: Served) -> openai.OpenAI:
    return openai.OpenAI(base_url=f"{served.url}/v1", api_key="unused", max_retries=0)


def probabilities(served: Served, questions: Sequence[Any]) -> list[float]:
    with client_of(served) as client:
        decision = client.decisions.create(model="penstock-embedded", input=STATE, questions=questions)
    return [answer.probability for answer in decision.answers if answer.type == "predicate"]


def test_the_typed_object_has_all_kinds(embedded: Served) -> None:
    levels = [{"label": "calm"}, {"label": "wild", "description": "it bites"}]
    scale: Any = {"type": "score", "instructions": "How wild is it?", "levels": levels}
    with client_of(embedded) as client:
        decision = client.decisions.create(
            model="penstock-embedded", input=STATE, questions=[QUESTIONS[0], CHOICE, scale]
        )
    predicate, choice, score = decision.answers
    assert predicate.type == "predicate"
    assert 0 < predicate.probability < 1
    assert choice.type == "choice"
    assert choice.choice in ("wolf", "bear", False)
    assert sum(one.probability for one in choice.probabilities) == pytest.approx(1.0)
    assert score.type == "score"
    assert 0 <= score.score <= 1
    assert decision.usage.input_tokens_details.cached_tokens > 0


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
    with serving(trained=True) as served:
        alone = [probabilities(served, [question])[0] for question in QUESTIONS[:8]]
        together = probabilities(served, QUESTIONS)
        assert together[:8] == pytest.approx(alone, abs=1e-5)
        found: list[list[float]] = []
        asking = threading.Thread(target=lambda: found.append(probabilities(served, QUESTIONS)))
        done, victim = served.metric("penstock_requests_total"), served.engine_pid()
        asking.start()
        eventually(lambda: served.metric("penstock_requests_total") > done + 4)
        os.kill(victim, signal.SIGKILL)
        asking.join()
        assert served.engine_pid() != victim
        assert found[0] == pytest.approx(together, abs=1e-5)
