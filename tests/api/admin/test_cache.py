"""`/v1/cache`: report and clear the prefix cache."""

from __future__ import annotations

import httpx
import pytest
import trio
import trio.testing
from trio.testing import MockClock, trio_test

from tests.api.client import chat, client_of
from tests.fakes.loopback_engine import LoopbackLauncher, faulty
from tests.fakes.scheduling import make_scheduler, running

_PROMPT = len("<user>hello\n<assistant>")


@trio_test
async def test_the_tree_is_reported_in_numbers(autojump_clock: MockClock) -> None:
    """Tokens, bytes, hits and shared prefixes; no text of any prompt."""
    scheduler = make_scheduler(LoopbackLauncher())
    async with running(scheduler), client_of(scheduler) as client:
        for text in ("hello", "hello", "help"):
            await client.post("/v1/chat/completions", json=chat(text))
        response = await client.get("/v1/cache")
        body = response.json()
        assert body["enabled"] is True
        assert body["hit_tokens"] == (_PROMPT - 1) + len("<user>hel")
        assert body["segment_bytes"] == 64 * body["tokens"]
        assert {"tokens": 9, "references": 2, "hits": 2} in body["shared_prefixes"]
        assert "hello" not in response.text
        assert "<user>" not in response.text


@trio_test
async def test_text_is_shown_to_who_asks(autojump_clock: MockClock) -> None:
    """The requested number of each shared prefix's first tokens."""
    scheduler = make_scheduler(LoopbackLauncher())
    async with running(scheduler), client_of(scheduler) as client:
        for _ in range(2):
            await client.post("/v1/chat/completions", json=chat())
        body = (await client.get("/v1/cache", params={"text_tokens": 8})).json()
        assert body["shared_prefixes"][0]["text"] == "<user>he"
        assert (await client.get("/v1/cache", params={"text_tokens": -1})).status_code == 400


@trio_test
async def test_clearing_spares_what_is_in_use(autojump_clock: MockClock) -> None:
    """Prefixes that no running request uses are evicted; the next request is a miss and is answered."""
    scheduler = make_scheduler(LoopbackLauncher())
    async with running(scheduler) as nursery, client_of(scheduler) as client:
        await client.post("/v1/chat/completions", json=chat())
        await client.post("/v1/chat/completions", json=chat("other"))

        async def again() -> None:
            await client.post("/v1/chat/completions", json=chat(max_tokens=100))

        nursery.start_soon(again)
        await trio.sleep(0.2)
        cleared = (await client.delete("/v1/cache")).json()
        assert cleared["freed_bytes"] > 0
        assert 0 < cleared["tokens"] <= _PROMPT + 8
        await trio.sleep(5)
        assert (await client.delete("/v1/cache")).json()["nodes"] == 0
        usage = (await client.post("/v1/chat/completions", json=chat())).json()["usage"]
        assert usage["prompt_tokens_details"]["cached_tokens"] == 0


@trio_test
async def test_without_an_engine_there_is_no_answer(autojump_clock: MockClock) -> None:
    """503: immediately without an engine, and when it dies or hangs before it replies."""
    launcher = LoopbackLauncher(faulty(hang_at_step=3))
    scheduler = make_scheduler(launcher)
    async with client_of(scheduler) as client:
        assert (await client.get("/v1/cache")).status_code == 503
        async with running(scheduler) as nursery:
            nursery.start_soon(_post, client)
            await trio.sleep(1)
            with trio.fail_after(60):
                assert (await client.get("/v1/cache")).status_code == 503
            async with trio.open_nursery() as asking:
                asking.start_soon(_expect_unavailable, client)
                await trio.testing.wait_all_tasks_blocked()
                launcher.kill()


async def _post(client: httpx.AsyncClient) -> None:
    await client.post("/v1/chat/completions", json=chat())


async def _expect_unavailable(client: httpx.AsyncClient) -> None:
    with trio.fail_after(1):
        assert (await client.get("/v1/cache")).status_code == 503


@trio_test
async def test_a_prompt_is_warmed_and_held(autojump_clock: MockClock) -> None:
    """Nothing is answered; the next request finds all but its last token, and what is held is reported until
    `keep_seconds` pass."""
    scheduler = make_scheduler(LoopbackLauncher())
    async with running(scheduler), client_of(scheduler) as client:
        warmed = await client.post("/v1/cache", json=chat(), params={"keep_seconds": 600})
        assert warmed.json() == {"prompt_tokens": _PROMPT, "cached_tokens": 0, "keep_seconds": 600.0}
        assert (await client.get("/v1/cache")).json()["held_bytes"] > 0
        usage = (await client.post("/v1/chat/completions", json=chat())).json()["usage"]
        assert usage["prompt_tokens_details"]["cached_tokens"] == _PROMPT - 1
        for bad in ("soon", "0", "-1", "604801", "nan"):
            refused = await client.post("/v1/cache", json=chat(), params={"keep_seconds": bad})
            assert (refused.status_code, refused.json()["error"]["param"]) == (400, "keep_seconds")


@trio_test
async def test_a_prompt_is_warmed_as_it_is(autojump_clock: MockClock) -> None:
    """A text or its ids, in place of messages; one of them."""
    scheduler = make_scheduler(LoopbackLauncher())
    async with running(scheduler), client_of(scheduler) as client:
        text = "<user>hello\n"
        for prompt, cached in ((text, 0), (list(text.encode()), len(text) - 1)):
            warmed = await client.post("/v1/cache", json={"prompt": prompt})
            assert warmed.json() == {
                "prompt_tokens": len(text),
                "cached_tokens": cached,
                "keep_seconds": 300.0,
            }
        for bad in ({}, {"prompt": [-1]}, {"prompt": [True]}, {"prompt": text, **chat()}):
            assert (await client.post("/v1/cache", json=bad)).status_code == 400


@trio_test
async def test_a_time_to_live_holds_the_prompt(autojump_clock: MockClock) -> None:
    """`cache_control.ttl` of an Anthropic client; without a ttl the cache decides."""
    for mark, held in (({"type": "ephemeral"}, False), ({"type": "ephemeral", "ttl": "1h"}, True)):
        scheduler = make_scheduler(LoopbackLauncher())
        async with running(scheduler), client_of(scheduler) as client:
            content = [{"type": "text", "text": "hello", "cache_control": mark}]
            body = {"model": "tiny", "max_tokens": 4, "messages": [{"role": "user", "content": content}]}
            assert (await client.post("/v1/messages", json=body)).status_code == 200
            assert ((await client.get("/v1/cache")).json()["held_bytes"] > 0) == held


@pytest.mark.parametrize("kv_cache_bytes", [0, 40 * 68])
@trio_test
async def test_what_cannot_be_held_is_only_warmed(kv_cache_bytes: int, autojump_clock: MockClock) -> None:
    """Without a prefix cache, or without room in it: `keep_seconds` says that it is not held."""
    scheduler = make_scheduler(LoopbackLauncher(), kv_cache_bytes=kv_cache_bytes)
    async with running(scheduler), client_of(scheduler) as client:
        warmed = await client.post("/v1/cache", json=chat())
        assert (warmed.status_code, warmed.json()["keep_seconds"]) == (200, 0.0)
        report = (await client.get("/v1/cache")).json()
        assert report.get("held_bytes", 0) == 0
        assert (await client.post("/v1/chat/completions", json=chat())).status_code == 200
