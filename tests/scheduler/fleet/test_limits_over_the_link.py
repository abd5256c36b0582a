"""A memory limit on its way: to a real engine process, and to an engine that serves streams."""

from __future__ import annotations

from pathlib import Path

import msgspec
import trio
from trio.testing import MockClock, trio_test

from scheduler.config import EngineConfig
from scheduler.events import Finished
from scheduler.processes.channel import Channel
from scheduler.shared.messages import Ready, ScriptedPlan, SetMemoryLimit, StepOutput
from tests.fakes.loopback_engine import LoopbackLauncher
from tests.fakes.scheduling import answer, ask, make_scheduler, running
from tests.scheduler.processes.real_engine import RealEngine, load

_LIMIT = 1_000_000


def test_a_process_is_loaded_with_its_part_and_gets_another(tmp_path: Path) -> None:
    """It answers although it is idle, and says what it was asked for."""

    async def session(channel: Channel) -> None:
        part = msgspec.structs.replace(load(), memory_limit=_LIMIT, memory_most_bytes=3 * _LIMIT)
        channel.send_nowait(part)
        ready = await channel.receive()
        assert isinstance(ready, Ready)
        assert ready.memory_limit_bytes == _LIMIT
        for limit_bytes in (_LIMIT // 2, 2 * _LIMIT):
            channel.send_nowait(SetMemoryLimit(limit_bytes, 2, 3 * _LIMIT))
            output = await channel.receive()
            assert isinstance(output, StepOutput)
            assert (output.tokens, output.prefills, output.retired) == ([], [], [])
            guard = output.counters.guard
            assert guard.asked == guard.limit == limit_bytes
            assert guard.floor <= guard.least <= guard.kept <= limit_bytes

    trio.run(RealEngine(tmp_path).run, session)


@trio_test
async def test_streams_go_on_while_limits_change(autojump_clock: MockClock) -> None:
    """Ten streams, a limit every tenth of a second, down to where one row alone runs: each gets its whole
    answer, the same one, and no engine is taken for hung."""
    requests = [ask(f"question {number} " * 20, max_tokens=100) for number in range(10)]

    async def texts(limits: list[int]) -> list[str]:
        launcher = LoopbackLauncher()
        plan = ScriptedPlan(step_seconds=0.01)
        engine = EngineConfig("scripted", "none", max_slots=8, scripted=plan, memory_limit=_LIMIT)
        scheduler = make_scheduler(launcher, engine=engine)
        found: dict[int, str] = {}

        async def one(number: int) -> None:
            text, final = await answer(scheduler, requests[number])
            assert isinstance(final, Finished)
            found[number] = text

        async with running(scheduler), trio.open_nursery() as nursery:
            for number in range(len(requests)):
                nursery.start_soon(one, number)
            [member] = scheduler.pool
            for limit_bytes in limits:
                await trio.sleep(0.1)
                member.send(SetMemoryLimit(limit_bytes, 2, _LIMIT))
        assert launcher.starts == 1
        return [found[number] for number in range(len(requests))]

    assert await texts([100_000, 20_000, 1, 500_000, 30_000, _LIMIT]) == await texts([])
