"""Answers whose steps give several tokens: the prompt has most of them already, as where a file is edited."""

from __future__ import annotations

import json
from typing import Any

import pytest
import trio
import trio.testing
from trio.testing import trio_test

from scheduler.config import EngineConfig
from scheduler.shared.messages import ScriptedPlan
from tests.api.client import chat, client_of, events
from tests.fakes.playback import Playback
from tests.fakes.samples import sample
from tests.fakes.scheduling import make_scheduler, running

SAID = "def area(w, h):\n    return w * h  # in square metres\n"
MOST_TOKENS = 40
SLOW = ScriptedPlan(step_seconds=0.01)


async def asked(speculation: Any = "auto", **fields: Any) -> tuple[str, float]:
    """Return the response, and the number of the answer's steps but one."""
    engine = EngineConfig("scripted", "none", scripted=SLOW, speculation=speculation)
    scheduler = make_scheduler(Playback(SAID), SLOW, engine=engine)
    async with running(scheduler), client_of(scheduler) as client:
        response = await client.post(
            "/v1/chat/completions", json=chat(SAID, max_tokens=MOST_TOKENS, **fields)
        )
        assert response.status_code == 200
        return response.text, sample(scheduler.metrics.registry, "penstock_inter_token_seconds_count")


@trio_test
async def test_a_steps_tokens_are_one_piece(autojump_clock: trio.testing.MockClock) -> None:
    """With the log-probabilities of all, and the usage of all up to there."""
    text, gaps = await asked(
        stream=True,
        logprobs=True,
        top_logprobs=1,
        stream_options={"include_usage": True, "continuous_usage_stats": True},
    )
    *chunks, last, _ = events(text)
    pieces = [chunk for chunk in chunks if chunk["choices"][0]["delta"].get("content")]
    texts = [chunk["choices"][0]["delta"]["content"] for chunk in pieces]
    assert "".join(texts) == SAID[:MOST_TOKENS]
    assert len(pieces) == gaps + 1 < MOST_TOKENS / 2, "one a step"
    for chunk, text in zip(pieces, texts, strict=True):
        assert [entry["token"] for entry in chunk["choices"][0]["logprobs"]["content"]] == list(text)
    so_far = [chunk["usage"]["completion_tokens"] for chunk in pieces]
    assert so_far == [len("".join(texts[: at + 1])) for at in range(len(texts))]
    assert last["usage"]["completion_tokens"] == MOST_TOKENS
    assert chunks[-1]["choices"][0]["finish_reason"] == "length"


@pytest.mark.parametrize("stop", [None, ["return"]])
@trio_test
async def test_drafts_save_steps_and_change_nothing(
    stop: list[str] | None, autojump_clock: trio.testing.MockClock
) -> None:
    """A stop string in the middle of a piece ends text and usage where the plain run ends them."""
    (drafted, steps), (plain, plain_steps) = [await asked(how, stop=stop) for how in ("auto", "none")]
    answers = [json.loads(text) for text in (drafted, plain)]
    shown, expected = [(answer["choices"], answer["usage"]) for answer in answers]
    assert shown == expected
    assert steps < plain_steps / 2
