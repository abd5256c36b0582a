"""What dies with a process of an engine: who waits for it is let go, and nothing of it is in the next one."""

from __future__ import annotations

import pytest
import trio
import trio.testing
from trio.testing import trio_test

from scheduler.errors import Unavailable
from scheduler.prefix_estimate import BLOCK_TOKENS
from scheduler.shared.messages import Counters, Inspect, StepOutput
from tests.scheduler.engines.bench import PoolBench


@trio_test
async def test_callers_of_a_process_that_ends_get_no_answer_and_later_ones_wait_for_none() -> None:
    bench = PoolBench(1)
    bench.ready(0)
    life = bench.engine(0).process
    assert life is not None

    async def view(clear: bool) -> None:
        with pytest.raises(Unavailable):
            await life.inspections.inspect(clear, 1, 0)

    async with trio.open_nursery() as nursery:
        for clear in (False, True):
            nursery.start_soon(view, clear)
        await trio.testing.wait_all_tasks_blocked()
        bench.die(0)
    for clear in (False, True):
        await view(clear)
    assert sum(isinstance(one, Inspect) for one in bench.sent["0"]) == 2, "before it ended"


def test_nothing_of_a_process_is_in_the_next_one() -> None:
    """Neither what its cache is likely to have, nor its totals, nor the age of its last step."""
    bench = PoolBench(1)
    bench.ready(0)
    first = bench.engine(0).process
    bench.arrive(prompt=list(range(4 * BLOCK_TOKENS)))
    assert first is not None
    assert first.likely.tokens > 0
    bench.step(0)
    bench.engine(0).step(StepOutput([], [], [], Counters(steps=9, generated_tokens=90)))
    assert bench.engine(0).last_step_seconds(bench.now) is not None
    bench.pool.end_all(Unavailable("gone", retry_after_seconds=1.0))
    bench.die(0)
    assert bench.engine(0).process is None
    bench.engine(0).send(Inspect(0))
    bench.ready(0)
    second = bench.engine(0).process
    assert second is not None
    assert second is not first
    assert second.likely.tokens == 0
    assert bench.engine(0).last_step_seconds(bench.now) is None
    bench.engine(0).step(StepOutput([], [], [], Counters(steps=1, generated_tokens=10)))
    assert not any(isinstance(one, Inspect) for one in bench.sent["0"]), "it was not ready"
