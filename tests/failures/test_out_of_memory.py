"""The device runs out of memory: the next engine uses less, and reports it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import pytest
from trio.testing import MockClock, trio_test

from scheduler.engine.backend import Backend, StepResult
from scheduler.engine.plan import StepPlan
from scheduler.engine.scripted_backend import ScriptedBackend
from scheduler.shared.messages import Load, ScriptedPlan
from tests.cancellation.bench import Client
from tests.contracts.journal import prefixes_of
from tests.failures.undisturbed import check_undisturbed
from tests.fakes.loopback_engine import LoopbackLauncher, scripted
from tests.fakes.samples import sample
from tests.fakes.scheduling import ask, make_scheduler, running

PLAN = ScriptedPlan(step_seconds=0.01)
MALLOC = "[metal::malloc] Attempting to allocate 8589934592 bytes which is greater than the maximum"


@dataclass
class ScarceMemory:
    """The first `failures` engines fail at step `at_step`, with this error."""

    error: Exception
    failures: int = 1
    at_step: int = 6

    def __post_init__(self) -> None:
        self.budgets: list[int] = []

    def __call__(self, load: Load) -> Backend:
        backend = scripted(load)
        assert isinstance(backend, ScriptedBackend)
        self.budgets.append(prefixes_of(backend).budget_bytes)
        if self.failures:
            self.failures -= 1
            self._fail_at_its_step(backend)
        return backend

    def _fail_at_its_step(self, backend: ScriptedBackend) -> None:
        whole, steps = backend._step, iter(range(1, self.at_step))

        def step(plan: StepPlan) -> StepResult:
            if next(steps, None) is None:
                raise self.error
            return whole(plan)

        setattr(backend, "_step", step)  # noqa: B010 (a fake's inside)


@pytest.mark.parametrize("error", [MemoryError("std::bad_alloc"), RuntimeError(MALLOC)], ids=["c++", "mlx"])
@trio_test
async def test_the_next_engine_has_four_fifths_of_the_budget(
    error: Exception, autojump_clock: MockClock
) -> None:
    """Requests go on, and the operator can see the share and the cause in the report and the metrics."""
    memory = ScarceMemory(error)
    scheduler = make_scheduler(LoopbackLauncher(memory), PLAN)
    client = Client(ask(max_tokens=30))
    async with running(scheduler):
        assert scheduler.operations.report().kv_cache_share == 1
        await client.follow(scheduler)
        assert scheduler.operations.report().kv_cache_share == 0.8
    await check_undisturbed(client, PLAN)
    assert memory.budgets[1] == int(0.8 * memory.budgets[0])
    registry = scheduler.metrics.registry
    assert sample(registry, "penstock_kv_cache_share") == 0.8
    assert sample(registry, "penstock_engine_restarts_total", cause="out_of_memory") == 1


@trio_test
async def test_a_model_that_does_not_fit_is_no_matter_of_the_budget(autojump_clock: MockClock) -> None:
    """A load that runs out of memory has used none of the budget."""
    launcher = LoopbackLauncher()
    scheduler = make_scheduler(launcher, PLAN)
    async with running(scheduler):
        launcher._make_backend = _out_of_memory_once(launcher)
        launcher.kill()
        await Client(ask()).follow(scheduler)
        assert launcher.starts == 3
        assert scheduler.operations.report().kv_cache_share == 1


def _out_of_memory_once(launcher: LoopbackLauncher) -> Callable[[Load], Backend]:
    def make(load: Load) -> Backend:
        launcher._make_backend = scripted
        raise MemoryError("std::bad_alloc")

    return make


@trio_test
async def test_a_prompt_that_was_accepted_under_the_whole_budget_is_not_refused_under_less(
    autojump_clock: MockClock,
) -> None:
    """Alone it still runs; one beyond the whole budget never could."""
    budget_tokens = 200
    memory = ScarceMemory(MemoryError("std::bad_alloc"))
    launcher = LoopbackLauncher(memory)
    scheduler = make_scheduler(launcher, PLAN, kv_cache_bytes=64 * budget_tokens)
    large = Client(ask("x" * (budget_tokens - 30), max_tokens=8))
    async with running(scheduler):
        await large.follow(scheduler)
    await check_undisturbed(large, PLAN)
    assert launcher.starts == 2
    assert memory.budgets[1] < 64 * (budget_tokens - 30)
