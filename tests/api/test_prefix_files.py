"""`/v1/cache/export` and `/v1/cache/import`: a prefix as a file, between two servers."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from typing import Any

import httpx
import pytest
import trio
import trio.testing
from trio.testing import trio_test

from api.api_keys import load_keys
from tests.api.client import chat, client_of
from tests.fakes.loopback_engine import LoopbackLauncher
from tests.fakes.scheduling import make_scheduler, running

# httpx leaves its own generator open where a server answers before it has read the body.
pytestmark = pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")

_TEXT = "a long prompt " * 300
_PROMPT = len(f"<user>{_TEXT}\n<assistant>")


async def exported(client: httpx.AsyncClient, **fields: Any) -> bytes:
    response = await client.post("/v1/cache/export", json=chat(_TEXT, **fields))
    assert response.status_code == 200, response.text
    assert response.headers["content-type"] == "application/octet-stream"
    assert int(response.headers["x-penstock-tokens"]) >= _PROMPT
    return response.content


async def a_file() -> bytes:
    scheduler = make_scheduler(LoopbackLauncher())
    async with running(scheduler), client_of(scheduler) as client:
        await client.post("/v1/cache", json=chat(_TEXT))
        return await exported(client)


@trio_test
async def test_a_prefix_moves_to_another_server(autojump_clock: trio.testing.MockClock) -> None:
    """In whatever pieces the file arrives; the next request finds it, and placement knows of it."""
    file = await a_file()
    scheduler = make_scheduler(LoopbackLauncher())

    async def pieces() -> AsyncIterator[bytes]:
        for start in range(0, len(file), 997):
            yield file[start : start + 997]

    async with running(scheduler), client_of(scheduler) as client:
        loaded = await client.post("/v1/cache/import", content=pieces())
        held = {"keep_seconds": 300.0, "pin": None}
        assert (loaded.status_code, loaded.json()) == (200, {"tokens": _PROMPT, **held})
        assert (await client.get("/v1/cache")).json()["kept_bytes"] > 0
        (member,) = scheduler.pool
        assert member.life is not None
        assert member.life.likely.tokens > 0
        usage = (await client.post("/v1/chat/completions", json=chat(_TEXT))).json()["usage"]
        assert usage["prompt_tokens_details"]["cached_tokens"] == _PROMPT - 1


@trio_test
async def test_what_is_not_cached_cannot_be_exported(autojump_clock: trio.testing.MockClock) -> None:
    """By name; and nothing is computed for it."""
    scheduler = make_scheduler(LoopbackLauncher())
    async with running(scheduler), client_of(scheduler) as client:
        refused = await client.post("/v1/cache/export", json=chat(_TEXT))
        assert (refused.status_code, refused.json()["error"]["code"]) == (400, "prefix_refused")
        assert "nothing of this prompt is cached" in refused.json()["error"]["message"]


@pytest.mark.parametrize(
    ("damaged", "said"),
    [
        (lambda file: b"", "it is cut off"),
        (lambda file: b"safetensors or whatever" + file, "no exported prefix"),
        (lambda file: file[:-1], "it is cut off"),
        (lambda file: file[:40], "it is cut off"),
        (lambda file: file[:-1] + b"x", "damaged after"),
        (lambda file: file.replace(b"scripted", b"Scripted", 1), "of software 'Scripted' and not 'scripted'"),
        (lambda file: file + b"x", "more follows"),
        (lambda file: file[:18] + b"\xff" * 4 + file[22:], "longer than"),
    ],
)
@trio_test
async def test_a_file_that_is_not_whole_is_refused(
    damaged: Callable[[bytes], bytes], said: str, autojump_clock: trio.testing.MockClock
) -> None:
    """With what is wrong; the server goes on, and takes the right one."""
    file = await a_file()
    scheduler = make_scheduler(LoopbackLauncher())
    async with running(scheduler), client_of(scheduler) as client:
        refused = await client.post("/v1/cache/import", content=damaged(file))
        assert (refused.status_code, refused.json()["error"]["code"]) == (400, "prefix_refused")
        assert said in refused.json()["error"]["message"]
        loaded = await client.post("/v1/cache/import", content=file, params={"keep_alive": "-1"})
        assert loaded.json()["tokens"] == _PROMPT
        body = (await client.get("/v1/cache")).json()
        pin = {"pin": loaded.json()["pin"], "tokens": _PROMPT, "cached_tokens": _PROMPT}
        assert (body["pins"], body["leases"]) == ([pin], 0)


@trio_test
async def test_one_file_at_a_time(autojump_clock: trio.testing.MockClock) -> None:
    """503 with a time to come back; a client that leaves makes room."""
    file = await a_file()
    scheduler = make_scheduler(LoopbackLauncher())

    async def stuck() -> AsyncIterator[bytes]:
        yield file[:100]
        await trio.sleep_forever()

    async with running(scheduler), client_of(scheduler) as client:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(lambda: client.post("/v1/cache/import", content=stuck()))
            await trio.testing.wait_all_tasks_blocked()
            assert (await client.post("/v1/cache/import", content=file)).status_code == 503
            nursery.cancel_scope.cancel()
        assert (await client.post("/v1/cache/import", content=file)).status_code == 200


@trio_test
async def test_an_engine_that_dies_ends_an_import(autojump_clock: trio.testing.MockClock) -> None:
    """503, at once; the next engine takes the file from its beginning."""
    file = await a_file()
    launcher = LoopbackLauncher()
    scheduler = make_scheduler(launcher)
    rest = trio.Event()

    async def slow() -> AsyncIterator[bytes]:
        yield file[: len(file) // 2]
        await rest.wait()
        yield file[len(file) // 2 :]

    async with running(scheduler), client_of(scheduler) as client:

        async def load() -> None:
            with trio.fail_after(10):
                response = await client.post("/v1/cache/import", content=slow())
            assert response.status_code == 503

        async with trio.open_nursery() as loading:
            loading.start_soon(load)
            await trio.sleep(1)
            launcher.kill()
            await trio.testing.wait_all_tasks_blocked()
            rest.set()
        await scheduler.wait_ready()
        assert (await client.post("/v1/cache/import", content=file)).status_code == 200


@trio_test
async def test_an_engine_without_a_cache_refuses_by_name(autojump_clock: trio.testing.MockClock) -> None:
    """As one of several ranks does; of several engines the one that has the prompt exports it."""
    file = await a_file()
    scheduler = make_scheduler(LoopbackLauncher(), kv_cache_bytes=0)
    async with running(scheduler), client_of(scheduler) as client:
        for response in (
            await client.post("/v1/cache/import", content=file),
            await client.post("/v1/cache/export", json=chat(_TEXT)),
        ):
            assert response.status_code == 400
            assert "exports and imports no prefixes" in response.json()["error"]["message"]
    scheduler = make_scheduler(lambda number: LoopbackLauncher(), engines=2)
    async with running(scheduler), client_of(scheduler) as client:
        await client.post("/v1/cache", json=chat(_TEXT))
        assert await exported(client) == file


@trio_test
async def test_a_tenants_prefix_stays_its_own(autojump_clock: trio.testing.MockClock) -> None:
    """A file is imported for the tenant of the key that brings it."""
    file = await a_file()
    keys = load_keys("one:k1 admin,two:k2 admin,no:k3", None)
    scheduler = make_scheduler(LoopbackLauncher(), cache_sharing="tenant")
    async with running(scheduler), client_of(scheduler, keys=keys) as client:
        for path in ("/v1/cache/import", "/v1/cache/export"):
            assert (await client.post(path, json=chat(), headers={"x-api-key": "k3"})).status_code == 403
        await client.post("/v1/cache/import", content=file, headers={"x-api-key": "k1"})
        found = []
        for key in ("k2", "k1"):
            response = await client.post("/v1/chat/completions", json=chat(_TEXT), headers={"x-api-key": key})
            found.append(response.json()["usage"]["prompt_tokens_details"]["cached_tokens"])
        assert found == [0, _PROMPT - 1]


@trio_test
async def test_a_file_that_has_no_room_to_be_held_is_imported(autojump_clock: trio.testing.MockClock) -> None:
    """A pin and a time that was asked for are refused, and what was read stays in the cache."""
    file = await a_file()
    scheduler = make_scheduler(LoopbackLauncher(), kv_cache_bytes=_PROMPT * 3 // 2 * 68)
    async with running(scheduler), client_of(scheduler) as client:
        for keep_alive in ("-1", "60"):
            refused = await client.post("/v1/cache/import", content=file, params={"keep_alive": keep_alive})
            assert (refused.status_code, refused.json()["error"]["code"]) == (409, "hold_refused")
        body = (await client.get("/v1/cache")).json()
        assert (body["tokens"], body["pins"], body["kept_bytes"], body["leases"]) == (_PROMPT, [], 0, 0)
        loaded = await client.post("/v1/cache/import", content=file)
        assert (loaded.status_code, loaded.json()["keep_seconds"]) == (200, 0.0)
