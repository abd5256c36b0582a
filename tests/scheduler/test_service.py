"""The scheduler as a whole, in one process and in virtual time."""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable
from itertools import cycle
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
    EngineLost,
    InvalidRequest,
    PoisonousRequest,
    PromptTooLong,
    QueueFull,
    RequestFailed,
    TemplateFailed,
)
from scheduler.events import Failed, Finished, FinishReason
from scheduler.offload import Lane
from scheduler.prompt.preparation import Preparation
from scheduler.service import Scheduler
from scheduler.shared.messages import ScriptedPlan
from tests.cancellation.bench import Bench, Client
from tests.examples import examples
from tests.fakes.byte_tokenizer import ByteTokenizer
from tests.fakes.faulty_backend import Faults
from tests.fakes.loopback_engine import LoopbackLauncher
from tests.fakes.scheduling import FOLDER, answer, ask, make_scheduler, running

_T = TypeVar("_T")


@trio_test
async def test_an_answer_is_its_tokens_and_one_finish(autojump_clock: MockClock) -> None:
    """The text of eight scripted tokens, then Finished with the counts."""
    scheduler = make_scheduler(LoopbackLauncher())
    async with running(scheduler):
        text, final = await answer(scheduler, ask(max_tokens=8))
    assert len(text.split()) == 8
    assert isinstance(final, Finished)
    assert final.reason is FinishReason.LENGTH
    assert final.usage.output_tokens == 8


@trio_test
async def test_an_end_of_sequence_token_is_a_stop(autojump_clock: MockClock) -> None:
    """It counts and is not text; without max_tokens only it ends the answer."""
    bench = Bench(ScriptedPlan(step_seconds=0.01, stop_after=5))
    async with running(bench.scheduler):
        text, final = await answer(bench.scheduler, ask(max_tokens=None))
    assert len(text.split()) == 4
    assert isinstance(final, Finished)
    assert (final.reason, final.usage.output_tokens) == (FinishReason.STOP, 5)
    assert bench.outcomes() == {"stop": 1}


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
async def test_an_answer_does_not_depend_on_its_neighbours(autojump_clock: MockClock) -> None:
    """Twelve on four slots get the tokens that each gets alone."""
    alone = []
    for number in range(12):
        bench = Bench()
        async with running(bench.scheduler):
            alone.append((await answer(bench.scheduler, ask(f"{number}", max_tokens=number + 1)))[0])
    bench = Bench(max_slots=4)
    clients = [Client(ask(f"{number}", max_tokens=number + 1)) for number in range(12)]
    async with running(bench.scheduler):
        await follow_all(bench, clients)
    assert [client.text for client in clients] == alone
    assert len(set(alone)) == 12


@trio_test
async def test_a_full_queue_refuses_with_a_time_to_come_back(autojump_clock: MockClock) -> None:
    """One in the slot, two queued, the fourth is refused with a time; accepted ones are not affected."""
    bench = Bench(lookahead=0, max_queue=2)
    clients = [Client(ask(f"{number}")) for number in range(4)]
    async with running(bench.scheduler) as nursery:
        for client in clients:
            await bench.come(nursery, client)
        refusal = clients[3].refusal
        assert isinstance(refusal, QueueFull)
        assert refusal.retry_after_seconds is not None
        assert refusal.retry_after_seconds >= 1
        assert bench.sample("penstock_queued_requests") == 2
        await bench.scheduler.wait_idle()
        await answer(bench.scheduler, ask("again"))
    assert bench.outcomes() == {"length": 4, "rejected": 1}


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


@pytest.mark.parametrize(
    ("text", "kind", "words"),
    [
        ("refuse me", TemplateFailed, "refuses these messages"),
        ("x" * 50_000, PromptTooLong, f"40960 tokens.* {50_000 + len('<user><assistant>') + 1} input tokens"),
    ],
    ids=["template", "too long"],
)
@trio_test
async def test_a_prompt_that_cannot_be_is_refused_before_anything_is_queued(
    text: str, kind: type[InvalidRequest], words: str, autojump_clock: MockClock
) -> None:
    """And no other request is affected."""
    alone, _ = await answer_alone("neighbour")
    bench = Bench()
    neighbour = Client(ask("neighbour"))
    async with running(bench.scheduler) as nursery:
        await bench.come(nursery, neighbour)
        with pytest.raises(kind, match=words):
            async with bench.scheduler.stream(ask(text)):
                raise AssertionError("accepted")
        assert bench.scheduler.operations.statistics().in_engine == 1
        await bench.scheduler.wait_idle()
        await trio.testing.wait_all_tasks_blocked()
    assert neighbour.text == alone
    assert bench.outcomes() == {"length": 1, "invalid": 1}


async def answer_alone(text: str) -> tuple[str, Finished | Failed]:
    bench = Bench()
    async with running(bench.scheduler):
        return await answer(bench.scheduler, ask(text))


@pytest.mark.parametrize(
    ("faults", "kind", "words", "outcome"),
    [
        (Faults(refuse_token=ord("#")), InvalidRequest, 0, "invalid"),
        (Faults(fail_sampler_token=ord("#")), RequestFailed, 3, "error"),
    ],
    ids=["refused", "failed"],
)
@trio_test
async def test_a_request_that_the_engine_ends_takes_nobody_with_it(
    faults: Faults, kind: type[Exception], words: int, outcome: str, autojump_clock: MockClock
) -> None:
    """Refused at admission, or broken at its third token: one Failed; its neighbours are complete."""
    alone, _ = await answer_alone("neighbour")
    bench = Bench(faults=faults, max_slots=2)
    one, bad, two = (Client(ask(text)) for text in ("neighbour", "#", "neighbour"))
    async with running(bench.scheduler):
        await follow_all(bench, [one, bad, two])
        await bench.scheduler.wait_idle()
        await trio.sleep(0.05)
        bench.check_nothing_is_left()
    [final] = bad.finals
    assert isinstance(final, Failed)
    assert type(final.error) is kind
    assert len(bad.text.split()) == words
    assert one.text == two.text == alone
    assert bench.outcomes() == {"length": 2, outcome: 1}


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
async def test_waiting_for_idle_returns_at_once_where_nothing_is(autojump_clock: MockClock) -> None:
    """Before the engine is ready, and after."""
    bench = Bench()
    await bench.scheduler.wait_idle()
    async with running(bench.scheduler):
        await bench.scheduler.wait_idle()
    assert trio.current_time() == 0


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


@trio_test
async def test_cancelling_the_service_fails_what_is_in_flight_and_accepts_no_more(
    autojump_clock: MockClock,
) -> None:
    """No request waits for an engine that will not start."""
    bench = Bench(lookahead=0)
    clients = [Client(ask(f"{number}", max_tokens=1000)) for number in range(3)]
    async with trio.open_nursery() as nursery:
        scope = trio.CancelScope()

        async def run() -> None:
            with scope:
                await bench.scheduler.run()

        nursery.start_soon(run)
        for client in clients:
            await bench.come(nursery, client)
        await bench.wait_for(lambda: bool(clients[0].text))
        scope.cancel()
    assert [len(client.finals) for client in clients] == [1, 1, 1]
    with pytest.raises(Draining):
        async with bench.scheduler.stream(ask()):
            raise AssertionError("accepted")
    assert bench.outcomes() == {"error": 3, "rejected": 1}


visits = st.lists(
    st.tuples(
        st.floats(0, 0.4),
        st.just(math.inf) | st.floats(0, 0.2),
        st.sampled_from(["plain", "plain", "#", "refuse me", "x" * 41_000]),
        st.integers(1, 12),
    ),
    max_size=14,
)


@settings(max_examples=examples(25), deadline=None)
@given(
    visits=visits,
    deaths=st.lists(st.floats(0, 0.6), max_size=2),
    end=st.sampled_from(["idle", "drain", "end all"]),
    lookahead=st.integers(0, 2),
)
def test_every_request_has_exactly_one_outcome(
    visits: list[tuple[float, float, str, int]], deaths: list[float], end: str, lookahead: int
) -> None:
    """Finished, failed, refused, lost or left, in any mix, over engine deaths and at the service's end."""

    async def scenario() -> None:
        faults = Faults(fail_sampler_token=ord("#"))
        bench = Bench(faults=faults, max_slots=2, lookahead=lookahead, max_queue=4)
        clients: list[Client] = []
        numbers = cycle(range(100))

        async def visit(comes: float, stays: float, text: str, max_tokens: int) -> None:
            await trio.sleep(comes)
            client = Client(ask(f"{text}{next(numbers)}", max_tokens=max_tokens), stays=stays)
            clients.append(client)
            await client.follow(bench.scheduler)

        async with running(bench.scheduler):
            async with trio.open_nursery() as people:
                for each in visits:
                    people.start_soon(visit, *each)
                for moment in deaths:
                    people.start_soon(bench.kill_after, moment)
                await trio.sleep(0.3)
                if end == "drain":
                    bench.scheduler.start_drain()
                elif end == "end all":
                    bench.scheduler.end_all()
            await bench.scheduler.wait_idle()
            await trio.sleep(1)
            bench.check_nothing_is_left()
        assert sum(bench.outcomes().values()) == len(visits)
        for client in clients:
            has_left = client.scope.cancelled_caught
            endings = len(client.finals) + (client.refusal is not None)
            assert endings == 1 or (has_left and endings == 0)
            for final in client.finals:
                assert isinstance(final, Finished) or isinstance(
                    final.error, EngineLost | PoisonousRequest | RequestFailed | Draining
                )

    trio.run(scenario, clock=MockClock(autojump_threshold=0))
