"""`prediction` of chat completions, and the pieces of a stream whose steps give several tokens."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
import trio
from openai.types import CompletionUsage
from trio.testing import MockClock, trio_test

from scheduler.config import EngineConfig
from scheduler.request import MAX_PREDICTION_CHARACTERS, MAX_PREDICTION_TOKENS
from scheduler.service import Scheduler
from scheduler.shared.messages import ScriptedPlan
from tests.api.client import chat, events, served
from tests.api.dialects.test_official_dialects import ASK, gpt
from tests.fakes.playback import Playback
from tests.fakes.samples import sample
from tests.fakes.scheduling import make_scheduler, running

pytestmark = [
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]

SAID = "def area(w, h):\n    return w * h  # <|im_end|>\n"
"""No run of three characters is there twice, so that nothing is drafted but the prediction."""
SLOW = ScriptedPlan(step_seconds=0.01)
PLAIN: Any = {"model": "tiny", "messages": [ASK]}
STREAM = {"stream": True, "stream_options": {"include_usage": True}}


def expected(content: Any = SAID) -> Any:
    return {"type": "content", "content": content}


def drafted(scheduler: Scheduler) -> tuple[float, float]:
    """Return the tokens that its engines have drafted of predictions, and those that were accepted."""
    names = ("penstock_draft_tokens_total", "penstock_accepted_draft_tokens_total")
    registry, of = scheduler.metrics.registry, {"engine": "0", "source": "prediction"}
    tried, accepted = (sample(registry, name, **of) for name in names)
    return tried, accepted


def counts(usage: CompletionUsage | None) -> tuple[int, int]:
    """Return the tokens of the prediction that were drafted, and those that were accepted."""
    assert usage is not None
    details = usage.completion_tokens_details
    assert details is not None
    accepted, rejected = details.accepted_prediction_tokens, details.rejected_prediction_tokens
    assert accepted is not None
    assert rejected is not None
    return accepted + rejected, accepted


@asynccontextmanager
async def talking(**options: Any) -> AsyncIterator[tuple[Scheduler, Any]]:
    scheduler = make_scheduler(Playback(SAID), SLOW, **options)
    async with running(scheduler), gpt(scheduler) as client:
        yield scheduler, client.chat.completions


PARTS = [{"type": "text", "text": SAID[:9]}, {"type": "text", "text": SAID[9:]}]


@pytest.mark.parametrize("content", [SAID, PARTS, SAID.replace("w", "x").replace("h", "y")])
@trio_test
async def test_what_is_predicted_costs_fewer_steps_and_changes_nothing(
    content: Any, autojump_clock: MockClock
) -> None:
    """What is wrong of it is rejected, and counted."""
    async with talking() as (scheduler, chats):
        plain = await chats.create(**PLAIN)
        assert plain.usage.completion_tokens_details.accepted_prediction_tokens is None
        assert drafted(scheduler) == (0, 0)
        before = sample(scheduler.metrics.registry, "penstock_inter_token_seconds_count")
        answer = await chats.create(**PLAIN, prediction=expected(content))
        gaps = sample(scheduler.metrics.registry, "penstock_inter_token_seconds_count") - before
    assert answer.choices == plain.choices
    assert plain.usage.completion_tokens == answer.usage.completion_tokens == len(SAID) + 1
    tried, accepted = counts(answer.usage)
    is_right = content in (SAID, PARTS)
    assert accepted > (len(SAID) // 2 if is_right else 0)
    assert is_right or tried > accepted
    assert drafted(scheduler) == (tried, accepted)
    assert gaps == len(SAID) - accepted, "one gap a step, whatever it gave"


@trio_test
async def test_a_steps_tokens_are_one_piece(autojump_clock: MockClock) -> None:
    """With the log-probabilities of all, and the usage of all up to there."""
    metered: Any = {"stream": True, "stream_options": {"include_usage": True, "continuous_usage_stats": True}}
    body = chat(max_tokens=40, prediction=expected(), logprobs=True, top_logprobs=1, **metered)
    async with served(Playback(SAID), plan=SLOW) as client:
        response = await client.post("/v1/chat/completions", json=body)
    *chunks, last, _ = events(response.text)
    usage = last["usage"]
    pieces = [chunk for chunk in chunks if chunk["choices"][0]["delta"].get("content")]
    texts = [chunk["choices"][0]["delta"]["content"] for chunk in pieces]
    assert "".join(texts) == SAID[:40]
    accepted = usage["completion_tokens_details"]["accepted_prediction_tokens"]
    assert len(pieces) == 40 - accepted < 20, "one a step"
    for chunk, text in zip(pieces, texts, strict=True):
        tokens = [entry["token"] for entry in chunk["choices"][0]["logprobs"]["content"]]
        assert tokens == list(text)
    so_far = [chunk["usage"]["completion_tokens"] for chunk in pieces]
    assert so_far == [len("".join(texts[: at + 1])) for at in range(len(texts))]
    assert usage["completion_tokens"] == 40
    assert chunks[-1]["choices"][0]["finish_reason"] == "length"


@trio_test
async def test_a_stop_string_in_the_middle_of_a_piece(autojump_clock: MockClock) -> None:
    """Ends text and usage where the plain run ends them. What the engine drafted is then not known."""
    async with talking() as (_, chats):
        plain = await chats.create(**PLAIN, stop=["return"])
        predicted = await chats.create(**PLAIN, stop=["return"], prediction=expected())
    assert (predicted.choices, predicted.usage) == (plain.choices, plain.usage)
    assert plain.choices[0].message.content == SAID[: SAID.index("return")]
    assert plain.usage.completion_tokens == SAID.index("return") + len("return")


@trio_test
async def test_choices_and_streams_have_the_sum(autojump_clock: MockClock) -> None:
    async with talking() as (scheduler, chats):
        whole = await chats.create(**PLAIN, n=3, prediction=expected())
        first = drafted(scheduler)
        usage: Any = None
        async for chunk in await chats.create(**PLAIN, **STREAM, n=2, prediction=expected()):
            usage = chunk.usage or usage
        second = drafted(scheduler)
    assert first[1] > 2 * len(SAID)
    assert [counts(whole.usage)] == [first]
    assert counts(usage) == (second[0] - first[0], second[1] - first[1])


@trio_test
async def test_an_engine_dies_under_a_prediction(autojump_clock: MockClock) -> None:
    """The answer is the same; the usage counts what the last engine drafted, the metrics what both did."""
    launcher = Playback(SAID)
    scheduler = make_scheduler(launcher, ScriptedPlan(step_seconds=0.5))
    lost = (0.0, 0.0)

    async def kill() -> None:
        nonlocal lost
        while not (lost := drafted(scheduler))[1]:  # noqa: ASYNC110 (no event says it)
            await trio.sleep(0.1)
        launcher.kill()

    async with running(scheduler) as nursery, gpt(scheduler) as client:
        nursery.start_soon(kill)
        answer = await client.chat.completions.create(**PLAIN, prediction=expected())
        whole = drafted(scheduler)
    assert launcher.starts == launcher.submitted == 2
    assert answer.choices[0].message.content == SAID
    assert answer.usage is not None
    assert answer.usage.completion_tokens == len(SAID) + 1
    tried, accepted = counts(answer.usage)
    assert accepted > 0
    assert (tried, accepted) == (whole[0] - lost[0], whole[1] - lost[1])
    (resumed,) = launcher.submits
    assert resumed.done_tokens > 0
    assert resumed.prediction.tolist() == list(SAID.encode())


@trio_test
async def test_without_speculation_nothing_is_drafted(autojump_clock: MockClock) -> None:
    engine = EngineConfig("scripted", "none", scripted=SLOW, speculation="none")
    async with talking(engine=engine) as (scheduler, chats):
        answer = await chats.create(**PLAIN, prediction=expected())
    assert answer.choices[0].message.content == SAID
    assert (counts(answer.usage), drafted(scheduler)) == ((0, 0), (0, 0))


@trio_test
async def test_a_long_prediction_is_cut(autojump_clock: MockClock) -> None:
    """First to characters, so that a long one costs no more than a short one, then to tokens."""
    long = SAID + "ä" * MAX_PREDICTION_CHARACTERS
    async with served(launcher := Playback(SAID)) as client:
        for text in (long, SAID, ""):
            response = await client.post("/v1/chat/completions", json=chat(prediction=expected(text)))
            assert response.status_code == 200
    found = [bytes(submit.prediction.tolist()) for submit in launcher.submits]
    assert found == [long.encode()[:MAX_PREDICTION_TOKENS], SAID.encode(), b""]
