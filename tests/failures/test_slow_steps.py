"""Steps that take most of a minute, and clients that come and leave in the middle of them."""

from __future__ import annotations

import math
from dataclasses import dataclass

import trio
from hypothesis import example, given, settings
from hypothesis import strategies as st
from trio.testing import MockClock, trio_test

from scheduler.events import Queued
from scheduler.shared.messages import Begun, ScriptedPlan
from scheduler.statistics import EngineCondition
from tests.cancellation.bench import Bench, Client
from tests.examples import examples
from tests.failures.undisturbed import check_undisturbed
from tests.fakes.faulty_backend import EngineDeath
from tests.fakes.scheduling import ask, running

PLAN = ScriptedPlan(prefill_tokens_per_step=512)
STALL_SECONDS = 50.0


def slow(begun: Begun) -> float:
    """512 prompt tokens take almost as long as any step may take, and longer than a step that decodes."""
    return 0.05 + 0.08 * begun.prefill_tokens


@dataclass(frozen=True, slots=True)
class Visit:
    """A request that comes `pause` seconds after the one before, and whose client leaves after `stays`."""

    pause: float
    prompt_tokens: int
    max_tokens: int
    stays: float


seconds = st.floats(0.0, 100.0)
visits = st.builds(
    Visit,
    seconds | st.just(0.0),
    st.sampled_from([4, 40, 512, 1200]),
    st.sampled_from([1, 2, 20, 60]),
    st.just(math.inf) | st.floats(0.5, 100.0),
)


@settings(max_examples=examples(8), deadline=None)
@given(st.lists(visits, min_size=1, max_size=5), st.integers(1, 4))
# Short steps are known when the client of the long prompt leaves, in the middle of its first chunk.
@example([Visit(0, 1200, 200, math.inf), Visit(115, 1200, 20, 5.0), Visit(0, 40, 20, math.inf)], 4)
def test_no_healthy_engine_is_killed_when_clients_leave(coming: list[Visit], slots: int) -> None:
    """The limit of a step is that of what the engine computes. All who stay get their answers."""

    async def visit() -> None:
        bench = Bench(PLAN, max_slots=slots, stall_seconds=STALL_SECONDS)
        bench.launcher.step_seconds = slow
        staying: list[Client] = []
        async with running(bench.scheduler) as nursery:
            for number, one in enumerate(coming):
                await trio.sleep(one.pause)
                prompt = f"{number:04}" * (one.prompt_tokens // 4)
                client = Client(ask(prompt, max_tokens=one.max_tokens), stays=one.stays)
                await bench.come(nursery, client)
                if one.stays == math.inf:
                    staying.append(client)
            await bench.scheduler.wait_idle()
            assert bench.sample("penstock_engine_deaths_total") == 0
            assert bench.scheduler.operations.statistics().engine.last_death is None
        for client in staying:
            await check_undisturbed(client, PLAN)

    trio.run(visit, clock=MockClock(autojump_threshold=0))


@trio_test
async def test_in_a_quarantine_all_say_the_same(autojump_clock: MockClock) -> None:
    """Two engines died with two requests in their step. Each then computes alone; what comes meanwhile
    waits, and readiness, the operator's report and the stream say for whom and how far that is."""
    bench = Bench(PLAN, max_slots=4, lookahead=0)

    def die_twice() -> None:
        if bench.launcher.starts <= 2 and len(bench.observer.rows) == 2:
            raise EngineDeath

    bench.observer.before_step = die_twice
    bench.launcher.step_seconds = lambda begun: 1.0
    first, second, late = (Client(ask(text * 1500, max_tokens=9)) for text in "xyz")
    async with running(bench.scheduler) as nursery:
        await bench.come(nursery, first)
        await bench.come(nursery, second)
        await bench.wait_for(lambda: bench.sample("penstock_engine_deaths_total") == 1)
        third = Client(ask("w" * 1500, max_tokens=9))
        await bench.come(nursery, third)
        await bench.wait_for(lambda: bench.sample("penstock_engine_deaths_total") == 2)
        await bench.scheduler.wait_ready()
        await trio.sleep(1.5)
        await bench.come(nursery, late)
        operations = bench.scheduler.operations
        statistics, report = operations.statistics(), operations.report()
        assert statistics.engine.condition is EngineCondition.QUARANTINE
        assert [engine.condition for engine in report.engines] == [EngineCondition.QUARANTINE]
        assert [wait.reason for wait in report.waits if wait.requests] == ["awaiting_engine", "quarantine"]
        words = "a request with which engines died, which computes alone (512 of 1518 prompt tokens)"
        assert statistics.clearing == words
        assert late.stream is not None
        assert late.stream.progress == Queued(words)
        assert second.stream is not None
        assert second.stream.progress == Queued("an engine that resumes it: its own died")
        await bench.scheduler.wait_idle()
        assert operations.statistics().clearing is None
    for client in (first, second, third, late):
        await check_undisturbed(client, PLAN)
