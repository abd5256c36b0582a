"""`POST /v1/chat/completions`: whole and streamed answers."""

from __future__ import annotations

import re

import pytest
import trio
import trio.testing
from trio.testing import MockClock, trio_test

from scheduler.shared.messages import ScriptedPlan
from tests.api.client import ASKS_PROGRESS, chat, client_of, comments, events, served
from tests.fakes.byte_tokenizer import EOS
from tests.fakes.loopback_engine import LoopbackLauncher, faulty
from tests.fakes.scheduling import make_scheduler, running


@trio_test
async def test_a_prewarm_reads_the_prompt_alone(autojump_clock: MockClock) -> None:
    """As Anthropic's clients ask for it; a whole answer was made and stored."""
    path, body = "/v1/messages", {**chat(), "max_tokens": 0}
    async with served(LoopbackLauncher()) as client:
        whole = (await client.post(path, json=body)).json()
        streamed = await client.post(path, json={**body, "stream": True})
    assert whole["usage"]["output_tokens"] == 0 < whole["usage"]["input_tokens"]
    assert streamed.status_code == 200
    assert not re.search(r"w\d+ ", f"{whole}{streamed.text}")


@trio_test
async def test_every_chunk_has_the_usage_for_who_asks(autojump_clock: MockClock) -> None:
    """As vLLM's continuous_usage_stats: each choice's own so far, all choices' at the end; not without
    include_usage."""
    asked = {"include_usage": True, "continuous_usage_stats": True}
    async with served(LoopbackLauncher()) as client:
        body = chat(stream=True, n=2, stream_options=asked)
        response = await client.post("/v1/chat/completions", json=body)
        body = chat(stream=True, stream_options={"continuous_usage_stats": True})
        without = await client.post("/v1/chat/completions", json=body)
    *chunks, last, _ = events(response.text)
    for index in range(2):
        own = [chunk["usage"] for chunk in chunks if chunk["choices"][0]["index"] == index]
        counts = [usage["completion_tokens"] for usage in own]
        assert counts == sorted(counts)
        assert (counts[0], counts[-1], len(set(counts))) == (1, 8, 8)
        assert {usage["total_tokens"] - usage["completion_tokens"] for usage in own} == {
            last["usage"]["prompt_tokens"]
        }
    assert last["usage"]["completion_tokens"] == 16
    assert all("usage" not in chunk for chunk in events(without.text)[:-1])


@pytest.mark.parametrize("ignores", [False, True])
@trio_test
async def test_the_end_of_sequence_ends_with_stop_and_is_not_text(
    ignores: bool, autojump_clock: MockClock
) -> None:
    """It counts as output and is never visible; vLLM's `ignore_eos` goes on to max_tokens."""
    async with served(LoopbackLauncher(), plan=ScriptedPlan(step_seconds=0.01, stop_after=3)) as client:
        body = (await client.post("/v1/chat/completions", json=chat(ignore_eos=ignores))).json()
    (choice,), tokens = body["choices"], body["usage"]["completion_tokens"]
    assert (choice["finish_reason"], tokens) == (("length", 8) if ignores else ("stop", 3))
    assert ignores or len(choice["message"]["content"].split()) == 2
    assert str(EOS) not in choice["message"]["content"]


@trio_test
async def test_who_asks_gets_the_progress(autojump_clock: MockClock) -> None:
    """From the first moment: the queue, then the prefill progress."""
    plan = ScriptedPlan(step_seconds=1.0, prefill_tokens_per_step=10)
    scheduler = make_scheduler(LoopbackLauncher(), plan, max_slots=1, lookahead=0)
    async with running(scheduler) as nursery, client_of(scheduler, keep_alive_seconds=2.0) as client:
        for text in ("first", "second"):
            nursery.start_soon(lambda text: client.post("/v1/chat/completions", json=chat(text)), text)
            await trio.testing.wait_all_tasks_blocked()
        body = chat("third, and long", stream=True)
        response = await client.post("/v1/chat/completions", json=body, headers=ASKS_PROGRESS)
    said = comments(response.text)
    assert said[0] == "queued"
    total = len("<user>third, and long\n<assistant>")
    # The step that prefills the rest gives the first token, too.
    assert [line for line in said if line.startswith("prefill")][-1] == f"prefill 26/{total}"
    # A comment at least every two seconds without other events: 2 requests x (2 + 8) steps before.
    assert said.count("queued") >= 4


@trio_test
async def test_a_stream_lives_while_the_engine_restarts(autojump_clock: MockClock) -> None:
    """It says what it waits for, and reports the prompt's progress, never less than before."""
    launcher = LoopbackLauncher()
    scheduler = make_scheduler(launcher, ScriptedPlan(step_seconds=1.0, prefill_tokens_per_step=10))
    async with running(scheduler) as nursery, client_of(scheduler, keep_alive_seconds=0.02) as client:

        async def kill() -> None:
            await trio.sleep(6.5)
            launcher.kill()

        nursery.start_soon(kill)
        response = await client.post("/v1/chat/completions", json=chat(stream=True), headers=ASKS_PROGRESS)
    assert launcher.starts == 2
    reports = comments(response.text)
    assert "queued, waits for: an engine that resumes it: its own died" in reports
    prefills = [line.split()[1] for line in reports if line.startswith("prefill")]
    prefilled = [int(done.split("/")[0]) for done in prefills]
    # The restart alone takes 0.1 s, and the second prefill some steps of a second.
    assert len(prefilled) > 50
    assert prefilled == sorted(prefilled)


@trio_test
async def test_an_engine_death_is_one_error_event(autojump_clock: MockClock) -> None:
    """If the request is to blame and cannot be resumed: the stream ends with an OpenAI error object and the
    end mark, never silently."""
    async with served(LoopbackLauncher(faulty(die_at_step=4))) as client:
        response = await client.post("/v1/chat/completions", json=chat(stream=True, max_tokens=100))
    assert response.status_code == 200
    *_, error, done = events(response.text)
    assert done == "[DONE]"
    assert error["error"]["code"] == "poisonous_request"
    assert error["error"]["type"] == "server_error"
