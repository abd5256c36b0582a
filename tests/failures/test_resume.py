"""An engine dies, and every stream ends as in an undisturbed run: the next engine resumes it."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable

import pytest
import trio
import trio.testing
from hypothesis import given, settings
from hypothesis import strategies as st
from trio.testing import MockClock, trio_test

from scheduler.config import RecoveryConfig
from scheduler.errors import Draining
from scheduler.events import Failed, Finished, FinishReason, Prefilling, PromptToken, TextDelta
from scheduler.shared.messages import ScriptedPlan
from tests.cancellation.bench import Bench, Client
from tests.examples import examples
from tests.failures.undisturbed import check_undisturbed, undisturbed
from tests.fakes.scheduling import ask, running

SLOW = ScriptedPlan(step_seconds=0.01, prefill_tokens_per_step=8)
PATIENT = RecoveryConfig(max_request_deaths=1000, max_engine_deaths=1000)
"""For tests whose engines die more often than the default allows."""


def prefilled(client: Client) -> int:
    return max((event.done for event in client.events if isinstance(event, Prefilling)), default=0)


PLACES: dict[str, Callable[[Client], bool]] = {
    "first chunk": lambda client: prefilled(client) >= 8,
    "third chunk": lambda client: prefilled(client) >= 24,
    "token 2": lambda client: len(client.text.split()) >= 2,
}


@trio_test
async def test_log_probabilities_outlive_engines(autojump_clock: MockClock) -> None:
    """One with each token, none lost and none twice; and min_tokens counts the tokens of dead engines."""
    plan = ScriptedPlan(step_seconds=0.01, stop_after=1)
    bench = Bench(plan, recovery=PATIENT)
    async with running(bench.scheduler) as nursery:
        request = ask("long", max_tokens=100, top_logprobs=3, min_tokens=50)
        client = await bench.come(nursery, Client(request))
        for _ in range(6):
            said = len(client.text.split())
            await bench.wait_for(lambda said=said: len(client.text.split()) >= said + 6)  # type: ignore[misc]
            bench.launcher.kill()
            await trio.testing.wait_all_tasks_blocked()
        await bench.scheduler.wait_idle()
    assert len(client.logprobs) == 50
    assert all(len(entry.ids) == 4 for entry in client.logprobs)
    assert b"".join([entry.spelling(entry.ids[0]) for entry in client.logprobs]).decode() == client.text
    await check_undisturbed(client, plan)


@trio_test
async def test_those_on_board_go_before_those_who_wait(autojump_clock: MockClock) -> None:
    """They are charged only once."""
    bench = Bench(SLOW, max_slots=2, lookahead=1)
    clients = [Client(ask(f"{number}", max_tokens=12)) for number in range(6)]
    async with running(bench.scheduler) as nursery:
        for client in clients:
            await bench.come(nursery, client)
        await bench.wait_for(lambda: len(clients[1].text.split()) > 5)
        bench.launcher.kill()
        await bench.scheduler.wait_idle()
        await trio.sleep(0.05)
        bench.check_nothing_is_left()
    assert bench.observer.admitted == [1, 2, 1, 2, 3, 4, 5, 6]
    for client in clients:
        await check_undisturbed(client, SLOW)


@trio_test
async def test_a_drain_that_is_cut_short_fails_requests_awaiting_an_engine(autojump_clock: MockClock) -> None:
    """They fail without an engine when the server stops."""
    bench = Bench(SLOW)
    async with running(bench.scheduler) as nursery:
        client = await bench.strand(nursery)
        bench.scheduler.end_all()
        await bench.scheduler.wait_idle()
    [final] = client.finals
    assert isinstance(final, Failed)
    assert isinstance(final.error, Draining)


visits = st.lists(
    st.tuples(
        st.floats(0, 0.5),
        st.sampled_from(["a", "some longer prompt, of more than one chunk", "x" * 100]),
        st.integers(1, 30),
        st.booleans(),
        st.just(math.inf) | st.floats(0.01, 0.5),
    ),
    min_size=1,
    max_size=12,
)


@settings(max_examples=examples(12), deadline=None)
@given(
    visits=visits,
    deaths=st.lists(st.floats(0, 1.5), max_size=8),
    slots=st.integers(1, 5),
    lookahead=st.integers(0, 2),
)
def test_whenever_engines_die_every_answer_is_the_undisturbed_one(
    visits: list[tuple[float, str, int, bool, float]], deaths: list[float], slots: int, lookahead: int
) -> None:
    """Any arrivals, some of whom leave, some with a stop string; any moments of death."""

    async def scenario() -> None:
        bench = Bench(SLOW, max_slots=slots, lookahead=lookahead, recovery=PATIENT)
        clients: list[Client] = []

        async def visit(number: int) -> None:
            comes, text, max_tokens, stops, stays = visits[number]
            asks = 3 if number % 2 else None
            request = ask(f"{number}{text}", max_tokens=max_tokens, top_logprobs=asks)
            if stops:
                whole = (await undisturbed(request, SLOW)).text
                request = ask(f"{number}{text}", max_tokens=max_tokens, stop=(whole[len(whole) // 2 :][:6],))
            await trio.sleep(comes)
            client = Client(request, stays=stays)
            clients.append(client)
            await client.follow(bench.scheduler)

        async with running(bench.scheduler):
            async with trio.open_nursery() as people:
                for number in range(len(visits)):
                    people.start_soon(visit, number)
                for moment in deaths:
                    people.start_soon(bench.kill_after, moment)
            await bench.scheduler.wait_idle()
            await trio.sleep(15)
            bench.check_nothing_is_left()
        for client in clients:
            if client.finals or not client.scope.cancelled_caught:
                await check_undisturbed(client, SLOW)
            told = [event.done for event in client.events if isinstance(event, Prefilling)]
            assert told == sorted(told), "progress never goes back"
            texts = itertools.dropwhile(lambda event: not isinstance(event, TextDelta), client.events)
            assert not any(isinstance(event, Prefilling) for event in texts)
        ends = [final for client in clients for final in client.finals if isinstance(final, Finished)]
        tokens = sum(end.usage.output_tokens for end in ends)
        assert bench.sample("penstock_generated_tokens_total") >= tokens, "counters never go back"
        outcomes = bench.outcomes()
        assert sum(outcomes.values()) == len(visits)
        assert set(outcomes) <= {FinishReason.STOP.value, FinishReason.LENGTH.value, "cancelled"}
        assert len(ends) == sum(len(client.finals) for client in clients)

    trio.run(scenario, clock=MockClock(autojump_threshold=0))


def scores(client: Client) -> list[PromptToken]:
    (end,) = [event for event in client.events if isinstance(event, Finished)]
    assert end.prompt is not None
    return list(end.prompt())


@pytest.mark.parametrize("place", PLACES)
@trio_test
async def test_a_prompts_log_probabilities_come_once(place: str, autojump_clock: MockClock) -> None:
    """Whole, and of no use to the next engine once they are: those of half a prompt are computed again."""
    asked = ask("what is it" * 3, max_tokens=12, prompt_logprobs=2)
    bench = Bench(SLOW)
    async with running(bench.scheduler) as nursery:
        client = await bench.come(nursery, Client(asked))
        await bench.wait_for(lambda: PLACES[place](client))
        (record,) = bench.scheduler.pool.records
        bench.launcher.kill()
        await bench.scheduler.wait_idle()
    assert bench.outcomes() == {"length": 1}
    undisturbed_client = await undisturbed(asked, SLOW)
    assert client.text == undisturbed_client.text
    found = scores(client)
    assert found == scores(undisturbed_client)
    assert len(found) == len(record.submit.prompt)
    assert [token.offset for token in found if token.logprobs is None] == [0]
    assert record.resubmit_message().prompt_logprobs is None
