"""Which process reads a body, who waits for whom, and what is left of a request."""

from __future__ import annotations

import gc
from collections import Counter

import pytest
import trio
import trio.testing
from trio.testing import trio_test

from api.preparers import preparers as module
from api.preparers.messages import Caches
from api.preparers.preparer import Models
from tests.api.client import client_of
from tests.api.preparers.service import Service, long_chat, service
from tests.fakes.memory_preparer import ByteRecipe

PATH = "/v1/chat/completions"


async def turn(there: Service, session: str = "", tenant: str = "") -> None:
    headers = {"x-session-id": session} if session else {}
    answer = await there.http.post(PATH, json=long_chat(), headers=headers)
    assert answer.status_code == 200


@trio_test
async def test_a_session_stays_with_its_process(autojump_clock: None) -> None:
    """Which keeps the ids and texts of its earlier turns."""
    async with service(3) as there:
        homes = Counter[int]()
        for session in range(12):
            before = [process.calls for process in there.processes]
            for _ in range(2):
                await turn(there, f"agent {session}")
            made = [process.calls - old for process, old in zip(there.processes, before, strict=True)]
            assert sorted(made) == [0, 0, 6]
            homes[made.index(6)] += 1
        assert len(homes) == 3


@trio_test
async def test_a_session_leaves_a_process_that_is_busy(autojump_clock: None) -> None:
    async with service(2) as there:
        await turn(there, "agent")
        home, other = sorted(there.processes, key=lambda process: -process.calls)
        home.gate = trio.Event()
        async with trio.open_nursery() as nursery:
            for _ in range(module.BUSY_CALLS):
                nursery.start_soon(turn, there, "agent")
                await trio.testing.wait_all_tasks_blocked()
            assert other.calls == 0
            await turn(there, "agent")
            assert other.calls == 3
            home.gate.set()


@trio_test
async def test_a_conversation_without_a_name_stays_too(autojump_clock: None) -> None:
    """Known by how its bodies begin, whichever process is the least busy when it goes on."""
    async with service(2) as there:
        first, second = there.processes
        first.gate = trio.Event()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(turn, there)
            await trio.testing.wait_all_tasks_blocked()
            body = long_chat("a longer text, of more than four thousand bytes " * 4)
            assert (await there.http.post(PATH, json=body)).status_code == 200
            assert second.calls == 3
            first.gate.set()
        body["messages"] += [{"role": "assistant", "content": "so"}, {"role": "user", "content": "go on"}]
        assert (await there.http.post(PATH, json=body)).status_code == 200
        assert second.calls == 6


@trio_test
async def test_without_a_session_the_least_busy_process_reads(autojump_clock: None) -> None:
    async with service(2) as there:
        first, second = there.processes
        await turn(there)
        assert (first.calls, second.calls) == (3, 0)
        first.gate = trio.Event()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(turn, there)
            await trio.testing.wait_all_tasks_blocked()
            await turn(there)
            assert second.calls == 3
            first.gate.set()


@trio_test
async def test_a_client_that_leaves_frees_what_was_made_for_it(autojump_clock: None) -> None:
    """Its call is carried out nevertheless: a process cannot stop in the middle."""
    async with service() as there:
        (process,) = there.processes
        for calls in (1, 2, 3):
            process.gate = trio.Event()
            with trio.CancelScope() as scope:
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(turn, there)
                    for _ in range(calls - 1):
                        await trio.testing.wait_all_tasks_blocked()
                        process.gate.set()
                        process.gate = trio.Event()
                    await trio.testing.wait_all_tasks_blocked()
                    scope.cancel()
            process.gate.set()
            await trio.testing.wait_all_tasks_blocked()
            gc.collect()
            await trio.testing.wait_all_tasks_blocked()
            assert process.held == 0
        await turn(there)
        assert there.preparers.report()["calls"] == 0


@trio_test
async def test_a_refused_request_leaves_nothing(autojump_clock: None) -> None:
    """Read and decoded, and then the queue has no room for it."""
    async with service(max_queue=1, max_slots=1, lookahead=1) as there:
        statuses = Counter[int]()

        async def ask() -> None:
            statuses[(await there.http.post(PATH, json=long_chat())).status_code] += 1

        async with trio.open_nursery() as nursery:
            for _ in range(8):
                nursery.start_soon(ask)
        assert statuses[503]
        assert statuses[200] + statuses[503] == 8
        gc.collect()
        await trio.testing.wait_all_tasks_blocked()
        assert there.held == 0


@trio_test
async def test_a_body_of_megabytes_is_read_by_the_server(
    autojump_clock: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "MOST_BYTES", 100)
    async with service() as there:
        await turn(there)
        assert there.calls == 0


@trio_test
async def test_what_processes_keep_is_summed_also_over_those_that_ended(autojump_clock: None) -> None:
    async with service(2) as there:
        for number, session in enumerate(there.preparers.sessions(), 1):
            session.caches = (
                Caches("tiny", 10 * number, 5, 100, 4, 2, 50),
                Caches("other", 1, 1, 1, 1, 1, 1),
            )
        pieces, texts = there.preparers.caches("tiny")
        assert (pieces.tokens, pieces.kept_tokens, pieces.held_bytes) == (30, 10, 200)
        assert (texts.messages, texts.kept_messages, texts.held_bytes) == (8, 4, 100)
        there.processes[0].kill()
        await trio.testing.wait_all_tasks_blocked()
        pieces, texts = there.preparers.caches("tiny")
        assert (pieces.tokens, pieces.kept_tokens, pieces.held_bytes) == (30, 10, 100)
        report = there.scheduler.operations.report()
        assert report.prompt_pieces.tokens == 30
        assert report.prompt_texts.held_bytes == 50


@trio_test
async def test_operators_see_the_processes(autojump_clock: None) -> None:
    async with (
        service(2) as there,
        client_of(there.scheduler, reports={"preparation_processes": there.preparers.report}) as operator,
    ):
        report = (await operator.get("/v1/scheduler")).json()["preparation_processes"]
        assert report == {"processes": 2, "ready": 2, "calls": 0, "deaths": 0}


def test_a_further_model_is_loaded_by_its_first_request() -> None:
    """Its tokenizer takes a second and memory, and it may never be asked for."""
    models = Models({"first": ByteRecipe(), "second": ByteRecipe()})
    assert list(models) == ["first"]
    assert models["second"] is models["second"]
    assert list(models) == ["first", "second"]
