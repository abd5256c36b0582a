"""An answer that repeats itself is ended, in every dialect, and says so beside its finish reason."""

from __future__ import annotations

from typing import Any

import pytest
import trio.testing
from trio.testing import trio_test

from api.options.options import load
from scheduler.prompt.preparation import Preparation
from scheduler.repetition import Repetition
from scheduler.service import Scheduler
from tests.api.client import client_of
from tests.api.transcripts import answers_of
from tests.fakes.byte_tokenizer import ByteTokenizer
from tests.fakes.playback import Playback
from tests.fakes.scheduling import FOLDER, make_scheduler, running

ANSWER = "Well, " + "so on and " * 100
ENDED = len("Well, ") + 64 + 10
"""After the 64 tokens of the rule, at the next look."""
ASK = [{"role": "user", "content": "x"}]
BODIES: dict[str, dict[str, Any]] = {
    "/v1/chat/completions": {"messages": ASK, "max_tokens": 500, "n": 2},
    "/v1/completions": {"prompt": "x", "max_tokens": 500, "n": 2},
    "/v1/messages": {"model": "tiny", "messages": ASK, "max_tokens": 500},
    "/v1/responses": {"input": "x", "max_output_tokens": 500},
}
MARK = {"repetition": True}


def scheduler_of() -> Scheduler:
    # Ten copies of a phrase of ten letters are a hundred tokens: the span decides.
    rule = Repetition(64, copies=2)
    return make_scheduler(Playback(ANSWER), preparation=Preparation(ByteTokenizer(), FOLDER, repetition=rule))


REASONS = {"/v1/messages": "max_tokens", "/v1/responses": "max_output_tokens"}


@pytest.mark.parametrize("streams", [False, True])
@pytest.mark.parametrize("path", BODIES)
@trio_test
async def test_the_answer_ends_as_if_cut_and_names_the_cause(
    autojump_clock: trio.testing.MockClock, path: str, streams: bool
) -> None:
    """Its row ends in the engine, too."""
    scheduler, reason = scheduler_of(), REASONS.get(path, "length")
    async with running(scheduler), client_of(scheduler) as client:
        response = await client.post(path, json={**BODIES[path], "stream": streams})
        for answer in answers_of(path, response.text, streams=streams):
            assert (answer.text, answer.reason, answer.mark) == (ANSWER[:ENDED], reason, MARK)
        await scheduler.wait_idle()
        metrics = (await client.get("/metrics")).text
    assert f'outcome="repetition"}} {BODIES[path].get("n", 1)}.0' in metrics


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/completions"])
@trio_test
async def test_a_request_decides_itself(autojump_clock: trio.testing.MockClock, path: str) -> None:
    """vLLM's field sets the rule, or turns it off; so does a wish for tokens behind every end."""
    scheduler = scheduler_of()
    cases: list[tuple[dict[str, Any], int]] = [
        ({"repetition_detection": {"max_pattern_size": 10, "min_count": 3}}, 48),
        ({"repetition_detection": {"max_pattern_size": 0}}, 500),
        ({"repetition_detection": {"max_pattern_size": 9, "min_count": 2}}, 500),
        ({"repetition_detection": None}, ENDED),
        ({"ignore_eos": True}, 500),
        ({"min_tokens": 300}, 304),
    ]
    async with running(scheduler), client_of(scheduler) as client:
        for fields, tokens in cases:
            response = await client.post(path, json={**BODIES[path], "n": 1, **fields})
            (answer,) = answers_of(path, response.text, streams=False)
            assert (len(answer.text), answer.reason) == (tokens, "length"), fields
            assert answer.mark == (None if tokens == 500 else MARK), fields
            assert response.json()["usage"]["completion_tokens"] == tokens
        for bad in ({"max_pattern_size": 4}, {"max_pattern_size": 4, "min_count": 2, "min_pattern_size": 5}):
            response = await client.post(path, json={**BODIES[path], "repetition_detection": bad})
            assert response.status_code == 400
            assert "repetition_detection" in response.json()["error"]["param"]
        await scheduler.wait_idle()


def test_the_operator_sets_the_span_or_turns_it_off() -> None:
    assert load({}).repetition() == Repetition(1024)
    assert load({"repetition_tokens": "300"}).repetition() == Repetition(300)
    assert load({"repetition_tokens": "0"}).repetition() is None
