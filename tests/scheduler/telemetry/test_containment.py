"""A bug in telemetry or accounting costs no stream a token."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import structlog
import trio
from prometheus_client import Counter, Gauge, Histogram
from trio.testing import MockClock, trio_test

from scheduler.engines.engine import EngineProcess
from scheduler.requests.time_line import TimeLine
from scheduler.service import Scheduler
from scheduler.shared.messages import ScriptedPlan
from tests.cancellation.bench import Client
from tests.fakes.loopback_engine import LoopbackLauncher
from tests.fakes.samples import sample
from tests.fakes.scheduling import ask, make_scheduler, running


class BugError(Exception):
    """An unexpected exception."""


class BrokenInstrument:
    """Raises for any attribute."""

    def __getattr__(self, name: str) -> Any:
        raise BugError(f"no {name}")


def break_metrics(scheduler: Scheduler) -> None:
    for owner in (scheduler.metrics.server, scheduler.metrics, *scheduler.metrics.engines):
        for name, value in list(vars(owner).items()):
            if isinstance(value, Counter | Gauge | Histogram | dict) and not name.startswith("_"):
                setattr(owner, name, BrokenInstrument())


def raises_from(
    owner: Callable[[Scheduler], Any], method: str, *, after: int = 0, times: int = 10**9
) -> Callable[[Scheduler], None]:
    """Make a method of the scheduler's part raise after its work, except in the first `after` calls."""

    def break_it(scheduler: Scheduler) -> None:
        part = owner(scheduler)
        real, calls = getattr(part, method), 0

        def broken(*args: Any) -> Any:
            nonlocal calls
            calls += 1
            result = real(*args)
            if after < calls <= after + times:
                raise BugError(method)
            return result

        setattr(part, method, broken)

    return break_it


async def texts_of(scheduler: Scheduler, broken: Callable[[Scheduler], None] | None = None) -> list[str]:
    """Return the texts of six requests at once."""
    clients = [Client(ask(f"{number}", max_tokens=12)) for number in range(6)]
    async with running(scheduler):
        if broken is not None:
            broken(scheduler)
        async with trio.open_nursery() as nursery:
            for client in clients:
                nursery.start_soon(client.follow, scheduler)
        await scheduler.wait_idle()
    assert all(len(client.finals) == 1 for client in clients)
    return [client.text for client in clients]


async def undisturbed() -> list[str]:
    return await texts_of(make_scheduler(LoopbackLauncher(), ScriptedPlan(step_seconds=0.01)))


def life_of(scheduler: Scheduler) -> EngineProcess:
    life = scheduler.pool["0"].process
    assert life is not None
    return life


BROKEN: dict[str, tuple[Callable[[Scheduler], None], int]] = {
    # What is broken, and how many engines start: none dies of telemetry.
    "metrics": (break_metrics, 1),
    "recent": (raises_from(lambda one: one.recent, "add"), 1),
    "engine-totals": (raises_from(lambda one: life_of(one).totals, "take"), 1),
    # Each after some tokens: tokens delivered before it raised must not come twice.
    "route": (raises_from(lambda one: one.pool["0"].multiplexer, "route", after=6, times=1), 2),
    "accounting": (raises_from(lambda one: one.queue, "observe", after=20, times=1), 2),
    "stall-watch": (raises_from(lambda one: life_of(one).stall, "stepped", after=5, times=1), 2),
}


@pytest.mark.parametrize("name", BROKEN)
@trio_test
async def test_a_bug_costs_no_token(name: str, autojump_clock: MockClock) -> None:
    """One in routing is the engine's end, as a LinkError: the next one resumes, and each stream has the same
    tokens."""
    broken, starts = BROKEN[name]
    launcher = LoopbackLauncher()
    scheduler = make_scheduler(launcher, ScriptedPlan(step_seconds=0.01))
    assert await texts_of(scheduler, broken) == await undisturbed()
    assert launcher.starts == starts
    last_death = scheduler.operations.statistics().engine.last_death
    assert (last_death is None) if starts == 1 else "BugError" in (last_death or "")


@trio_test
async def test_a_broken_time_line_is_counted_and_logged_once(
    autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Six requests: six failures, one log line, and what each asked for."""
    expected = await undisturbed()
    monkeypatch.setattr(TimeLine, "_end", lambda *_, **__: 1 // 0)
    scheduler = make_scheduler(LoopbackLauncher(), ScriptedPlan(step_seconds=0.01))
    with structlog.testing.capture_logs() as lines:
        assert await texts_of(scheduler) == expected
    assert [line["part"] for line in lines if line["event"] == "telemetry_failed"] == ["time_line"]
    assert sample(scheduler.metrics.registry, "penstock_telemetry_failures_total", part="time_line") == 6
