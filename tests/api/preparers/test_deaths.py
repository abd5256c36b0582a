"""A preparation process that ends costs a request time, and no other request anything."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import trio
import trio.testing
from prometheus_client import generate_latest
from trio.testing import trio_test

from api.preparers.messages import Call
from api.preparers.preparers import Preparers
from scheduler.link.child_process import LaunchFailed
from scheduler.link.side_process import SideSession
from scheduler.telemetry.metrics import Metrics
from tests.api.preparers.service import Service, long_chat, service
from tests.fakes.memory_preparer import ByteRecipe, MemoryPreparer

PATH = "/v1/chat/completions"


def once(which: int) -> Callable[[Call], bool]:
    """A process dies at its Nth call, and never again."""
    seen = 0

    def dies(call: Call) -> bool:
        nonlocal seen
        seen += 1
        return seen == which

    return dies


async def asked(there: Service, text: str) -> str:
    """Return the prompt that the engine got."""
    before = len(there.engine.submits)
    answer = await there.http.post(PATH, json=long_chat(text))
    assert answer.status_code == 200, answer.text
    assert answer.json()["choices"][0]["message"]["content"] == "Yes."
    return bytes(there.engine.submits[before].prompt.tolist()).decode()


@pytest.mark.parametrize("processes", [1, 2])
@pytest.mark.parametrize("call", [1, 2, 3], ids=["reading", "decoding", "preparing"])
@trio_test
async def test_the_conversation_is_made_again(autojump_clock: None, call: int, processes: int) -> None:
    """By another process, or by the next one; before it was read also by the server itself."""
    async with service(processes) as there:
        expected = await asked(there, "hello")
        dies = once(call)
        for process in there.processes:
            process.dies = dies
        if processes == 1 and call > 1:
            # None runs for a moment.
            refused = await there.http.post(PATH, json=long_chat("hello"))
            assert refused.status_code == 503
            assert refused.json()["error"]["code"] == "service_unavailable"
            assert refused.headers["retry-after"] == "1"
            await trio.sleep(1)
        assert await asked(there, "hello") == expected
        await trio.sleep(1)
        assert there.preparers.report() == {
            "processes": processes,
            "ready": processes,
            "calls": 0,
            "deaths": 1,
        }
        assert await asked(there, "hello") == expected
        assert there.held == 0


@trio_test
async def test_a_request_that_ends_two_processes_fails_alone(autojump_clock: None) -> None:
    async with service(3) as there:
        for process in there.processes:
            process.dies = lambda call: b"poison" in call.work
        answers: dict[str, int] = {}

        async def ask(text: str) -> None:
            answer = await there.http.post(PATH, json=long_chat(text))
            answers[text] = answer.status_code
            if text == "poison":
                assert answer.json()["error"]["code"] == "preparation_failed"

        async with trio.open_nursery() as nursery:
            for text in ("a", "poison", "b", "c", "d", "e"):
                nursery.start_soon(ask, text)
        assert answers == {**dict.fromkeys("abcde", 200), "poison": 500}
        assert there.preparers.report()["deaths"] == 2


@trio_test
async def test_those_behind_it_are_not_suspected(autojump_clock: None) -> None:
    """Only a call that was begun may have ended a process; any number of others' deaths are survived."""
    async with service(2) as there:
        for process in there.processes:
            process.gate = trio.Event()
        async with trio.open_nursery() as nursery:
            for text in "abcd":
                nursery.start_soon(asked, there, text)
            for process in there.processes:
                await trio.testing.wait_all_tasks_blocked()
                process.kill()
                process.gate.set()
                await trio.sleep(20)
        assert there.preparers.report()["deaths"] == 2


class NoProcess(MemoryPreparer):
    """Cannot be started at first."""

    def __init__(self, failures: int) -> None:
        super().__init__()
        self._failures = failures
        self.tried_at: list[float] = []

    async def run(self, session: SideSession) -> str:
        self.tried_at.append(trio.current_time())
        if len(self.tried_at) <= self._failures:
            raise LaunchFailed("no processes left")
        return await super().run(session)


@trio_test
async def test_a_process_that_cannot_be_started_is_tried_again_later_and_later(autojump_clock: None) -> None:
    process, metrics = NoProcess(10), Metrics()
    preparers = Preparers([process], metrics)
    preparers.add("tiny", ByteRecipe(), ByteRecipe().make())
    async with trio.open_nursery() as nursery:
        nursery.start_soon(preparers.run)
        await trio.sleep(60)
        assert preparers.report() == {"processes": 1, "ready": 1, "calls": 0, "deaths": 10}
        samples = generate_latest(metrics.registry).decode()
        assert "penstock_preparation_processes 1.0" in samples
        assert "penstock_preparation_process_deaths_total 10.0" in samples
        nursery.cancel_scope.cancel()
        gaps = [later - now for now, later in zip(process.tried_at, process.tried_at[1:], strict=False)]
        assert gaps == pytest.approx([0.1, 0.2, 0.4, 0.8, 1.6, 3.2, 6.4, 10, 10, 10])


@trio_test
async def test_without_a_process_the_server_reads_itself(autojump_clock: None) -> None:
    async with service() as there:
        expected = await asked(there, "hello")
        calls = there.calls
        (process,) = there.processes
        process.dies = lambda call: True
        assert await asked(there, "hello") == expected
        assert there.calls == calls + 1


@trio_test
async def test_processes_that_were_killed_before_the_request_came_are_not_its_deaths(
    autojump_clock: None,
) -> None:
    """All at once, before the server has noticed."""
    async with service(4) as there:
        expected = await asked(there, "hello")
        for process in there.processes:
            process.kill()
        assert await asked(there, "hello") == expected
        assert there.preparers.report()["deaths"] == 4
