"""The machine sleeps, and trio's clock with it: deadlines go on, and nothing counts as a stall."""

from __future__ import annotations

import time
from dataclasses import dataclass, field

import pytest
import trio
from hypothesis import given, settings
from hypothesis import strategies as st
from structlog.testing import capture_logs
from trio.testing import MockClock, trio_test

from scheduler.errors import DeadlineExceeded, QueueTimeout
from scheduler.events import Failed
from scheduler.intake.system_sleep import SleepTime, continuous_seconds
from scheduler.shared.messages import ScriptedPlan
from tests.cancellation.bench import Bench, Client
from tests.failures.undisturbed import check_undisturbed
from tests.fakes.faulty_backend import Faults
from tests.fakes.scheduling import ask, running

PLAN = ScriptedPlan(step_seconds=0.01)
SLOW_STEPS = ScriptedPlan(step_seconds=0.1)
"""For minutes in which nothing depends on a step."""
HOUR = 3600.0
SOON = 1.1
"""The clocks are read once a second."""
FOREVER = 30_000


@dataclass
class Machine:
    """Both clocks of a machine that may sleep."""

    slept_seconds: float = 0.0

    def sleep(self, seconds: float) -> None:
        self.slept_seconds += seconds

    def continuous(self) -> float:
        return trio.current_time() + self.slept_seconds


def failed_with(client: Client, kind: type[DeadlineExceeded]) -> bool:
    final = client.finals[-1] if client.finals else None
    return isinstance(final, Failed) and type(final.error) is kind


@trio_test
async def test_on_wake_streams_go_on_and_those_past_their_deadline_end(autojump_clock: MockClock) -> None:
    """Each limit with its own error, within a second, whether queued or running; no engine is replaced."""
    machine = Machine()
    bench = Bench(
        PLAN, max_slots=2, lookahead=0, queue_seconds=HOUR / 2, continuous=machine.continuous, stall_seconds=2
    )
    patient = Client(ask("patient", max_tokens=600))
    hurried = Client(ask("hurried", max_tokens=FOREVER, timeout_seconds=60))
    queued = Client(ask("queued"))
    in_time = Client(ask("in time", max_tokens=9))
    with capture_logs() as logs:
        async with running(bench.scheduler) as nursery:
            for client in (patient, hurried, queued):
                await bench.come(nursery, client)
            await trio.sleep(3.5)
            machine.sleep(HOUR)
            woke_at = trio.current_time()
            await bench.come(nursery, in_time)
            await bench.wait_for(lambda: bool(hurried.finals and queued.finals))
            assert trio.current_time() - woke_at < SOON
            await bench.scheduler.wait_idle()
            await trio.sleep(0.05)
            bench.check_nothing_is_left()
    assert failed_with(hurried, DeadlineExceeded)
    assert failed_with(queued, QueueTimeout)
    for client in (patient, in_time):
        await check_undisturbed(client, PLAN)
    assert bench.launcher.starts == 1
    assert [line["seconds"] for line in logs if line["event"] == "system_slept"] == [HOUR]


@trio_test
async def test_an_engine_that_wakes_later_is_not_hung(autojump_clock: MockClock) -> None:
    """Its silence before the sleep is forgotten: it has the whole limit again, and no more."""
    machine = Machine()
    limit = 60.0
    bench = Bench(PLAN, faults=Faults(hang_at_step=7), stall_seconds=limit, continuous=machine.continuous)
    async with running(bench.scheduler) as nursery:
        client = await bench.come(nursery, Client(ask(max_tokens=9)))
        await trio.sleep(limit - 5)
        machine.sleep(HOUR)
        await trio.sleep(limit - 1)
        assert bench.launcher.starts == 1
        await bench.wait_for(lambda: bench.launcher.starts == 2)
        await bench.scheduler.wait_idle()
    await check_undisturbed(client, PLAN)


@dataclass
class Night:
    """A course of running and sleeping, with the continuous time of each moment at which a request came."""

    sleep: SleepTime = field(default_factory=SleepTime)
    running: float = 0.0
    continuous: float = 0.0
    came: list[tuple[float, float]] = field(default_factory=list)
    noticed: float = 0.0

    def run(self, seconds: float) -> None:
        self.running += seconds
        self.continuous += seconds

    def come(self) -> None:
        self.came.append((self.running, self.continuous))

    def read(self) -> None:
        self.noticed += self.sleep.read(self.running, self.continuous)


SECOND = st.floats(0.01, 0.5)


@settings(deadline=None, derandomize=True)
@given(st.lists(st.tuples(SECOND, st.one_of(st.just(0.0), st.floats(1.5, 1e6)), SECOND), max_size=40))
def test_each_request_sleeps_what_was_slept_since_it_came(course: list[tuple[float, float, float]]) -> None:
    """One comes just before each sleep, which it sleeps through, and one just after it, before the sleep is
    noticed: each has the continuous time of its arrival."""
    night = Night()
    night.read()
    for before, asleep, after in course:
        night.run(before)
        night.come()
        night.read()
        night.continuous += asleep
        night.run(after)
        night.come()
        night.read()
    assert night.noticed == pytest.approx(sum(asleep for _, asleep, _ in course))
    for running_at, continuous_at in night.came:
        assert running_at + night.sleep.before(running_at) == pytest.approx(continuous_at, abs=1e-3)


def test_clocks_that_drift_or_are_read_late_are_no_sleep() -> None:
    """A process that was interrupted between its two readings, and the way back."""
    sleep = SleepTime()
    for late in (0.0, 0.3, 0.0, 0.9, 0.0):
        assert sleep.read(10.0, 50.0 + late) == 0.0
    assert sleep.total_seconds == 0.0


def test_the_systems_clock_counts_seconds() -> None:
    """The one that goes on during a sleep, and beside it the one that trio uses."""
    trios, continuous = time.perf_counter(), continuous_seconds()
    time.sleep(0.05)
    assert continuous_seconds() - continuous == pytest.approx(time.perf_counter() - trios, abs=0.04)
