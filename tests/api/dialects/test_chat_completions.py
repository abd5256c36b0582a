"""`POST /v1/chat/completions`: whole and streamed answers."""

from __future__ import annotations

import re

import trio
import trio.testing
from trio.testing import trio_test

from scheduler.shared.messages import ScriptedPlan
from tests.api.client import ASKS_PROGRESS, chat, client_of, comments, events
from tests.fakes.byte_tokenizer import EOS
from tests.fakes.loopback_engine import LoopbackLauncher, faulty
from tests.fakes.scheduling import make_scheduler, running


@trio_test
async def test_a_prewarm_reads_the_prompt_alone(autojump_clock: trio.testing.MockClock) -> None:
    """As Anthropic's clients ask for it; a whole answer was made and stored."""
    path, body = "/v1/messages", {**chat(), "max_tokens": 0}
    scheduler = make_scheduler(LoopbackLauncher())
    async with running(scheduler), client_of(scheduler) as client:
        whole = (await client.post(path, json=body)).json()
        streamed = await client.post(path, json={**body, "stream": True})
    usage = whole["usage"]
    assert usage.get("completion_tokens", usage.get("output_tokens")) == 0
    assert usage.get("prompt_tokens", usage.get("input_tokens")) > 0
    assert streamed.status_code == 200
    assert not re.search(r"w\d+ ", f"{whole}{streamed.text}")


@trio_test
async def test_every_chunk_has_the_usage_where_the_client_asks(
    autojump_clock: trio.testing.MockClock,
) -> None:
    """As vLLM's continuous_usage_stats: each choice's own so far, all choices' at the end; not without
    include_usage."""
    scheduler = make_scheduler(LoopbackLauncher())
    asked = {"include_usage": True, "continuous_usage_stats": True}
    async with running(scheduler), client_of(scheduler) as client:
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


@trio_test
async def test_a_stop_token_ends_with_stop_and_is_not_text(autojump_clock: trio.testing.MockClock) -> None:
    """The end-of-sequence token counts as output and is never visible."""
    scheduler = make_scheduler(LoopbackLauncher(), ScriptedPlan(step_seconds=0.01, stop_after=3))
    async with running(scheduler), client_of(scheduler) as client:
        body = (await client.post("/v1/chat/completions", json=chat())).json()
    assert body["choices"][0]["finish_reason"] == "stop"
    assert body["usage"]["completion_tokens"] == 3
    assert len(body["choices"][0]["message"]["content"].split()) == 2
    assert str(EOS) not in body["choices"][0]["message"]["content"]


@trio_test
async def test_ignore_eos_goes_on_to_max_tokens(autojump_clock: trio.testing.MockClock) -> None:
    """vLLM's field of that name: for load tests with answers of known length."""
    scheduler = make_scheduler(LoopbackLauncher(), ScriptedPlan(step_seconds=0.01, stop_after=3))
    async with running(scheduler), client_of(scheduler) as client:
        body = (await client.post("/v1/chat/completions", json=chat(ignore_eos=True))).json()
    assert body["choices"][0]["finish_reason"] == "length"
    assert body["usage"]["completion_tokens"] == 8


@trio_test
async def test_who_asks_gets_the_progress_in_comments(
    autojump_clock: trio.testing.MockClock,
) -> None:
    """From the first moment: the queue, then the prefill progress."""
    plan = ScriptedPlan(step_seconds=1.0, prefill_tokens_per_step=10)
    scheduler = make_scheduler(LoopbackLauncher(), plan, max_slots=1, lookahead=0)
    async with running(scheduler) as nursery, client_of(scheduler, keep_alive_seconds=2.0) as client:
        nursery.start_soon(_post, client, chat("first"))
        await trio.testing.wait_all_tasks_blocked()
        nursery.start_soon(_post, client, chat("second"))
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
async def test_a_stream_is_kept_alive_while_the_engine_restarts(
    autojump_clock: trio.testing.MockClock,
) -> None:
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


async def _post(client: object, body: object) -> None:
    import httpx

    assert isinstance(client, httpx.AsyncClient)
    await client.post("/v1/chat/completions", json=body)


@trio_test
async def test_an_engine_death_is_one_error_event_in_the_stream(
    autojump_clock: trio.testing.MockClock,
) -> None:
    """If the request is to blame and cannot be resumed: the stream ends with an OpenAI error object and the
    end mark, never silently."""
    scheduler = make_scheduler(LoopbackLauncher(faulty(die_at_step=4)))
    async with running(scheduler), client_of(scheduler) as client:
        response = await client.post("/v1/chat/completions", json=chat(stream=True, max_tokens=100))
    assert response.status_code == 200
    *_, error, done = events(response.text)
    assert done == "[DONE]"
    assert error["error"]["code"] == "poisonous_request"
    assert error["error"]["type"] == "server_error"
