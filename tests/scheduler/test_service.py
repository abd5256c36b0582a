"""The scheduler as a whole, in one process and in virtual time."""

from __future__ import annotations

import heapq
from collections.abc import Callable
from typing import TypeVar

import pytest
import trio
import trio.testing
from hypothesis import given, settings
from hypothesis import strategies as st
from trio.testing import MockClock, trio_test

from scheduler.config import EngineConfig, SchedulerConfig
from scheduler.engines.boundary import EngineProvision
from scheduler.errors import (
    Draining,
    QueueFull,
)
from scheduler.events import Failed, Finished
from scheduler.offload import Lane
from scheduler.prompt.preparation import Preparation
from scheduler.service import Scheduler
from tests.cancellation.bench import Bench, Client
from tests.examples import examples
from tests.fakes.byte_tokenizer import ByteTokenizer
from tests.fakes.scheduling import FOLDER, ask, running

_T = TypeVar("_T")


async def follow_all(bench: Bench, clients: list[Client]) -> None:
    """All at once, each to its end."""
    async with trio.open_nursery() as nursery:
        for client in clients:
            nursery.start_soon(client.follow, bench.scheduler)


def steps_of_first_come_first_served(lengths: list[int], slots: int) -> list[int]:
    """Return the step at which each request joins if no slot is ever empty while one waits.

    A request holds its slot for one step of each of its tokens; the first one prefills, too.
    """
    free_at = [0] * slots
    joins = []
    for tokens in lengths:
        joined = heapq.heappop(free_at)
        joins.append(joined)
        heapq.heappush(free_at, joined + tokens)
    return joins


@settings(max_examples=examples(25), deadline=None)
@given(lengths=st.lists(st.integers(1, 9), min_size=1, max_size=24), slots=st.integers(1, 4))
def test_no_request_waits_while_a_slot_is_free(lengths: list[int], slots: int) -> None:
    """Many more requests than slots: each joins at exactly the step of the best schedule."""

    async def scenario() -> None:
        bench = Bench(max_slots=slots, lookahead=slots)
        clients = [Client(ask(f"{number}", max_tokens=tokens)) for number, tokens in enumerate(lengths)]
        async with trio.open_nursery() as people:
            # All are queued before the engine starts, so that its first step can choose.
            for client in clients:
                await bench.come(people, client)
            async with running(bench.scheduler):
                await bench.scheduler.wait_idle()
                await trio.sleep(0.05)
                bench.check_nothing_is_left()
        assert bench.observer.admitted == list(range(1, len(lengths) + 1))
        joined = [bench.observer.joined_at[request_id] for request_id in bench.observer.admitted]
        assert joined == steps_of_first_come_first_served(lengths, slots)
        assert bench.observer.most_rows == min(slots, len(lengths))
        assert [len(client.text.split()) for client in clients] == lengths
        assert all(len(client.finals) == 1 for client in clients)
        assert bench.outcomes() == {"length": len(lengths)}

    trio.run(scenario, clock=MockClock(autojump_threshold=0))


@trio_test
async def test_the_bound_holds_for_those_who_were_tokenized_together(autojump_clock: MockClock) -> None:
    """There was room when each arrived; there is none when all of them are tokenized."""
    bench = Bench(lookahead=0, max_queue=1)

    async def slow(work: Callable[[], _T], /, *, tenant: str = "", lane: Lane = Lane.PLAIN) -> _T:
        await trio.sleep(1)
        return work()

    config = SchedulerConfig(EngineConfig("scripted", str(FOLDER.path), max_slots=1))
    config = SchedulerConfig(config.engine, intake=type(config.intake)(max_queue=1, lookahead=0))
    bench.scheduler = Scheduler(
        config, Preparation(ByteTokenizer(), FOLDER), EngineProvision(lambda number: bench.launcher), slow
    )
    clients = [Client(ask(f"{number}")) for number in range(5)]
    async with running(bench.scheduler):
        await follow_all(bench, clients)
    assert sum(isinstance(client.refusal, QueueFull) for client in clients) == 3
    assert bench.outcomes() == {"length": 2, "rejected": 3}


@trio_test
async def test_a_drain_finishes_what_was_accepted_and_accepts_nothing(autojump_clock: MockClock) -> None:
    """Running and queued ones end as usual; then the service is idle."""
    bench = Bench(lookahead=0)
    clients = [Client(ask(f"{number}")) for number in range(3)]
    async with running(bench.scheduler) as nursery:
        for client in clients:
            await bench.come(nursery, client)
        bench.scheduler.start_drain()
        assert bench.scheduler.operations.statistics().draining
        with pytest.raises(Draining):
            async with bench.scheduler.stream(ask("late")):
                raise AssertionError("accepted")
        await bench.scheduler.wait_idle()
        await trio.testing.wait_all_tasks_blocked()
        bench.check_nothing_is_left()
    assert [type(client.finals[0]) for client in clients] == [Finished] * 3
    assert bench.outcomes() == {"length": 3, "rejected": 1}
    assert bench.sample("penstock_rejections_total", reason="draining") == 1


@trio_test
async def test_ending_all_gives_each_a_final_event(autojump_clock: MockClock) -> None:
    """Running, in the lookahead, queued or still being tokenized: Draining, and the engine cancels them."""
    bench = Bench(lookahead=1)
    clients = [Client(ask(f"{number}", max_tokens=1000)) for number in range(4)]
    late = Client(ask("late"))
    async with running(bench.scheduler) as nursery:
        for client in clients:
            await bench.come(nursery, client)
        await bench.wait_for(lambda: bool(clients[0].text))
        nursery.start_soon(late.follow, bench.scheduler)
        bench.scheduler.end_all()
        with trio.fail_after(0.05):
            await bench.scheduler.wait_idle()
        await trio.sleep(0.05)
        bench.check_nothing_is_left()
    for client in clients:
        [final] = client.finals
        assert isinstance(final, Failed)
        assert isinstance(final.error, Draining)
    assert isinstance(late.refusal, Draining)
    assert late.stream is None
    assert bench.outcomes() == {"error": 4, "rejected": 1}
