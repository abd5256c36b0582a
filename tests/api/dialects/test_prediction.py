"""`prediction` of chat completions, and the pieces of a stream whose steps give several tokens."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import msgspec
import pytest
import trio
import trio.testing
from openai.types import CompletionUsage
from openai.types.chat import ChatCompletionPredictionContentParam
from trio.testing import trio_test

from scheduler.config import EngineConfig
from scheduler.request import MAX_PREDICTION_CHARACTERS, MAX_PREDICTION_TOKENS
from scheduler.service import Scheduler
from scheduler.shared.messages import ScriptedPlan
from tests.api.client import chat, client_of, events
from tests.api.dialects.test_official_client import USER, official
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


def expected(text: str = SAID) -> ChatCompletionPredictionContentParam:
    return {"type": "content", "content": text}


def drafted(scheduler: Scheduler, source: str = "prediction") -> tuple[float, float]:
    """Return the tokens that its engines have drafted, and those that were accepted."""
    registry = scheduler.metrics.registry
    return (
        sample(registry, "penstock_draft_tokens_total", engine="0", source=source),
        sample(registry, "penstock_accepted_draft_tokens_total", engine="0", source=source),
    )


def counts(usage: CompletionUsage | None) -> tuple[int, int]:
    """Return the tokens of the prediction that were accepted, and those that were rejected."""
    assert usage is not None
    assert usage.completion_tokens_details is not None
    details = usage.completion_tokens_details
    assert details.accepted_prediction_tokens is not None
    assert details.rejected_prediction_tokens is not None
    return details.accepted_prediction_tokens, details.rejected_prediction_tokens


@asynccontextmanager
async def talking(*texts: str, **options: Any) -> AsyncIterator[tuple[Scheduler, Any]]:
    scheduler = make_scheduler(Playback(*texts), SLOW, **options)
    async with running(scheduler), official(scheduler) as client:
        yield scheduler, client


@pytest.mark.parametrize("parts", [False, True])
@trio_test
async def test_what_is_predicted_costs_fewer_steps_and_changes_nothing(
    parts: bool, autojump_clock: trio.testing.MockClock
) -> None:
    prediction = expected()
    if parts:
        prediction["content"] = [{"type": "text", "text": SAID[:9]}, {"type": "text", "text": SAID[9:]}]
    async with talking(SAID) as (scheduler, client):
        plain = await client.chat.completions.create(model="tiny", messages=[USER])
        assert plain.usage.completion_tokens_details.accepted_prediction_tokens is None
        assert drafted(scheduler) == (0, 0)
        before = sample(scheduler.metrics.registry, "penstock_inter_token_seconds_count")
        answer = await client.chat.completions.create(model="tiny", messages=[USER], prediction=prediction)
        gaps = sample(scheduler.metrics.registry, "penstock_inter_token_seconds_count") - before
    assert answer.choices == plain.choices
    assert plain.usage.completion_tokens == answer.usage.completion_tokens == len(SAID) + 1
    accepted, rejected = counts(answer.usage)
    assert accepted > len(SAID) // 2
    assert drafted(scheduler) == (accepted + rejected, accepted)
    assert gaps == len(SAID) - accepted, "one gap a step, whatever it gave"


@trio_test
async def test_a_steps_tokens_are_one_piece(autojump_clock: trio.testing.MockClock) -> None:
    """With the log-probabilities of all, and the usage of all up to there."""
    body = chat(
        stream=True,
        max_tokens=40,
        prediction=expected(),
        logprobs=True,
        top_logprobs=1,
        stream_options={"include_usage": True, "continuous_usage_stats": True},
    )
    scheduler = make_scheduler(Playback(SAID), SLOW)
    async with running(scheduler), client_of(scheduler) as client:
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
async def test_a_stop_string_in_the_middle_of_a_piece(autojump_clock: trio.testing.MockClock) -> None:
    """Ends text and usage where the plain run ends them. What the engine drafted is then not known."""
    async with talking(SAID) as (_, client):
        plain, predicted = [
            await client.chat.completions.create(model="tiny", messages=[USER], stop=["return"], **prediction)
            for prediction in ({}, {"prediction": expected()})
        ]
    assert predicted.choices == plain.choices
    assert predicted.usage == plain.usage
    assert plain.choices[0].message.content == SAID[: SAID.index("return")]
    assert plain.usage.completion_tokens == SAID.index("return") + len("return")


@trio_test
async def test_what_is_wrong_of_a_prediction_is_rejected(autojump_clock: trio.testing.MockClock) -> None:
    other = SAID.replace("w", "x").replace("h", "y")
    async with talking(SAID) as (scheduler, client):
        answer = await client.chat.completions.create(
            model="tiny", messages=[USER], prediction=expected(other)
        )
    assert answer.choices[0].message.content == SAID
    accepted, rejected = counts(answer.usage)
    assert accepted > 0
    assert rejected > 0
    assert drafted(scheduler) == (accepted + rejected, accepted)


@trio_test
async def test_choices_and_streams_have_the_sum(autojump_clock: trio.testing.MockClock) -> None:
    async with talking(SAID) as (scheduler, client):
        whole = await client.chat.completions.create(
            model="tiny", messages=[USER], n=3, prediction=expected()
        )
        first = drafted(scheduler)
        usage = None
        async for chunk in await client.chat.completions.create(
            model="tiny",
            messages=[USER],
            n=2,
            prediction=expected(),
            stream=True,
            stream_options={"include_usage": True},
        ):
            usage = chunk.usage or usage
        second = drafted(scheduler)
    accepted, rejected = counts(whole.usage)
    assert accepted == first[1] > 2 * len(SAID)
    assert rejected == first[0] - first[1]
    assert counts(usage) == (second[1] - first[1], second[0] - first[0] - (second[1] - first[1]))


@trio_test
async def test_an_engine_dies_under_a_prediction(autojump_clock: trio.testing.MockClock) -> None:
    """The answer is the same; the usage counts what the last engine drafted, the metrics what both did."""
    launcher = Playback(SAID)
    scheduler = make_scheduler(launcher, ScriptedPlan(step_seconds=0.5))
    lost = (0.0, 0.0)

    async def kill() -> None:
        nonlocal lost
        while not (lost := drafted(scheduler))[1]:  # noqa: ASYNC110 (no event says it)
            await trio.sleep(0.1)
        launcher.kill()

    async with running(scheduler) as nursery, official(scheduler) as client:
        nursery.start_soon(kill)
        answer = await client.chat.completions.create(model="tiny", messages=[USER], prediction=expected())
        whole = drafted(scheduler)
    assert launcher.starts == launcher.submitted == 2
    assert answer.choices[0].message.content == SAID
    assert answer.usage is not None
    assert answer.usage.completion_tokens == len(SAID) + 1
    accepted, rejected = counts(answer.usage)
    assert accepted > 0
    assert (accepted + rejected, accepted) == (whole[0] - lost[0], whole[1] - lost[1])
    (resumed,) = launcher.submits
    assert resumed.done_tokens > 0
    assert resumed.prediction.tolist() == list(SAID.encode())


@trio_test
async def test_without_speculation_nothing_is_drafted(autojump_clock: trio.testing.MockClock) -> None:
    engine = EngineConfig("scripted", "none", scripted=SLOW, speculation="none")
    async with talking(SAID, engine=engine) as (scheduler, client):
        answer = await client.chat.completions.create(model="tiny", messages=[USER], prediction=expected())
    assert answer.choices[0].message.content == SAID
    assert counts(answer.usage) == (0, 0)
    assert drafted(scheduler) == (0, 0)


@pytest.mark.parametrize(
    ("prediction", "param"),
    [
        ("text", "prediction"),
        ([], "prediction.type"),
        ({"type": "content"}, "prediction.content"),
        ({"content": "text"}, "prediction.type"),
        ({"type": "text", "content": "text"}, "prediction.type"),
        ({"type": "content", "content": 5}, "prediction.content"),
        ({"type": "content", "content": [{"type": "text"}]}, "prediction.content.0.text"),
        ({"type": "content", "content": [{"type": "image_url", "text": ""}]}, "prediction.content.0.type"),
    ],
)
@trio_test
async def test_a_malformed_prediction_is_refused(
    prediction: Any, param: str | None, autojump_clock: trio.testing.MockClock
) -> None:
    scheduler = make_scheduler(Playback(SAID))
    async with running(scheduler), client_of(scheduler) as client:
        # As ASCII: httpx writes no lone surrogates.
        response = await client.post(
            "/v1/chat/completions",
            content=json.dumps(chat(prediction=prediction)),
            headers={"content-type": "application/json"},
        )
    error = response.json()["error"]
    assert (response.status_code, error["type"], error["param"]) == (400, "invalid_request_error", param)


@trio_test
async def test_a_long_prediction_is_cut(autojump_clock: trio.testing.MockClock) -> None:
    """First to characters, so that a long one costs no more than a short one, then to tokens."""
    launcher = Playback(SAID)
    scheduler = make_scheduler(launcher)
    long = SAID + "ä" * MAX_PREDICTION_CHARACTERS
    async with running(scheduler), client_of(scheduler) as client:
        for text in (long, SAID, ""):
            response = await client.post("/v1/chat/completions", json=chat(prediction=expected(text)))
            assert response.status_code == 200
    first, second, third = (tuple(submit.prediction) for submit in launcher.submits)
    assert first == tuple(long.encode()[:MAX_PREDICTION_TOKENS])
    assert second == tuple(SAID.encode())
    assert third == ()
    assert msgspec.msgpack.encode(first)
