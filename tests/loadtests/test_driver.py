"""The driver against a target with known latencies, in virtual time: the record shows what happened."""

from __future__ import annotations

from typing import Any

import pytest
import trio
import trio.testing
from starlette.types import ASGIApp
from trio.testing import trio_test

from api.served_models import ServedModels
from loadtests.driver import Driver, HealthMeter
from loadtests.figures import measure
from loadtests.record import Outcome, RunRecord
from loadtests.scenario import Scenario
from loadtests.targets import Target
from tests.api.client import MODEL, app_of
from tests.fakes.loopback_engine import LoopbackLauncher
from tests.fakes.memory_network import MemoryNetwork
from tests.fakes.scheduling import make_scheduler, running
from tests.loadtests.scripted_target import Script, ScriptedTarget

# httpx and httpcore leave their own generators to the garbage collector when a stream is closed early.
pytestmark = pytest.mark.filterwarnings(
    "ignore::ResourceWarning", "ignore::pytest.PytestUnraisableExceptionWarning"
)

TARGET = Target(name="scripted", url="http://memory", model="tiny")


def scenario(**population: Any) -> Scenario:
    bounds = population.pop("bounds", {"seconds": 1000, "request_seconds": 50})
    arrivals, output = {"kind": "closed", "clients": 2}, {"least": 5, "most": 5}
    agents = {"name": "agents", "arrivals": arrivals, "sessions": 4, "output": output, **population}
    document = {"name": "test", "description": "test", "bounds": bounds, "populations": [agents]}
    return Scenario.model_validate(document)


async def drive(target: ASGIApp, plan: Scenario) -> RunRecord:
    network = MemoryNetwork()
    driver = Driver(plan, TARGET, network.client, "salt", tokens_per_word=1.5)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(network.serve, target)
        run = await driver.run()
        nursery.cancel_scope.cancel()
    return run


@trio_test
async def test_stamps_are_the_targets_own_times(autojump_clock: trio.testing.MockClock) -> None:
    """First delta after half a second, then one every tenth; comments and the role are not tokens."""
    run = await drive(ScriptedTarget(), scenario())
    assert [request.outcome for request in run.requests] == [Outcome.OK] * 4
    for request in run.requests:
        offsets = [stamp - request.sent_at for stamp in request.stamps]
        assert offsets == pytest.approx([0.5, 0.6, 0.7, 0.8, 0.9])
        assert request.ended_at == pytest.approx(request.stamps[-1])
        assert (request.prompt_tokens, request.cached_tokens, request.output_tokens) == (100, 0, 5)
    # Two clients, four sessions of 0.9 s: two after two.
    assert [request.sent_at for request in run.requests] == pytest.approx([0, 0, 0.9, 0.9])
    assert run.generator.void is None
    assert not run.interrupted
    assert measure(run).values["output_tokens_per_second"] == pytest.approx(20 / 1.8)


@trio_test
async def test_questions_are_asked_and_counted(autojump_clock: trio.testing.MockClock) -> None:
    """Our own server is asked; the state grows, and is read once."""
    scheduler = make_scheduler(LoopbackLauncher())
    plan = scenario(questions=3, turns={"least": 2, "most": 2}, sessions=1)
    async with running(scheduler):
        run = await drive(app_of(ServedModels.of(scheduler, MODEL)), plan)
    first, second = run.requests
    assert (first.outcome, len(first.stamps), first.output_tokens) == (Outcome.OK, 1, 0)
    assert (second.prompt_tokens or 0) > (first.prompt_tokens or 0) > (first.cached_tokens or 0) > 0


@trio_test
async def test_every_failure_has_its_own_name(autojump_clock: trio.testing.MockClock) -> None:
    """Refused, answered 500, cut, broken, silent: five outcomes, each recorded, and the run ends. A session
    that failed goes no further."""
    scripts = [
        *(Script(status=429), Script(status=500), Script(cut_after=2), Script(error_after=2)),
        *(Script(first_seconds=1e9), Script()),
    ]
    turns = {"least": 2, "most": 2}
    plan = scenario(arrivals={"kind": "burst", "clients": 6}, sessions=6, turns=turns)
    run = await drive(ScriptedTarget(lambda number: scripts[min(number, 5)]), plan)
    expected = (Outcome.REFUSED, Outcome.HTTP_ERROR, Outcome.CUT, Outcome.STREAM_ERROR, Outcome.TIMED_OUT)
    outcomes = {request.outcome for request in run.requests}
    assert (len(run.requests), outcomes) == (7, {*expected, Outcome.OK})
    refused = next(request for request in run.requests if request.outcome is Outcome.REFUSED)
    assert (refused.status, "the script says no" in refused.detail) == (429, True)


@trio_test
async def test_clients_with_a_timeout_say_so_and_leave_when_it_is_over(
    autojump_clock: trio.testing.MockClock,
) -> None:
    """The deadline is for the whole answer: recorded as a failure of the target. Without one no header is
    sent."""
    target = ScriptedTarget(lambda number: Script(deltas=5 if number % 2 else 50))
    run = await drive(target, scenario(timeout_seconds=1.25))
    assert target.timeouts == ["1.25"] * 4
    left = [request for request in run.requests if request.outcome is Outcome.TIMED_OUT]
    assert [request.ended_at - request.sent_at for request in left] == pytest.approx([1.25] * 2)
    assert {(len(request.stamps), request.detail) for request in left} == {(8, "not answered within 1.25 s")}
    await drive(other := ScriptedTarget(), scenario())
    assert other.timeouts == [""] * 4


@trio_test
async def test_a_session_feeds_the_real_answers_back(autojump_clock: trio.testing.MockClock) -> None:
    """Turn two's messages are turn one's, the server's own answer, and a new one."""
    target = ScriptedTarget()
    turns = {"least": 3, "most": 3, "growth_tokens": 30, "gap_median_seconds": 2.0}
    plan = scenario(sessions=1, turns=turns, output={"least": 2, "most": 2})
    run = await drive(target, plan)
    first, second, third = (body["messages"] for body in target.bodies)
    assert second[: len(first)] == first
    assert second[len(first)] == {"role": "assistant", "content": "word0 word1 "}
    assert third[: len(second)] == second
    assert len({request.session for request in run.requests}) == 1
    assert [request.turn for request in run.requests] == [1, 2, 3]
    assert run.requests[1].sent_at - run.requests[0].ended_at == pytest.approx(2.0)
    assert run.requests[1].reusable_share > 0.5


@trio_test
async def test_subagents_run_together_and_are_waited_for(autojump_clock: trio.testing.MockClock) -> None:
    """Three subagents start together after the first turn; the second turn starts when all have ended."""
    target = ScriptedTarget()
    subagents = {"at_turn": 1, "count": 3, "turns": 2}
    plan = scenario(sessions=1, turns={"least": 2, "most": 2}, subagents=subagents)
    run = await drive(target, plan)
    first, *children, last = run.requests
    assert len(children) == 3 * 2
    assert len({name for name in target.sessions if "/" in name}) == 3
    assert {child.sent_at for child in children[:3]} == {first.ended_at}
    assert last.sent_at == pytest.approx(max(child.ended_at for child in children))
    # In the record it is one session, whose time includes theirs.
    assert len({request.session for request in run.requests}) == 1


@trio_test
async def test_time_is_a_bound(autojump_clock: trio.testing.MockClock) -> None:
    """After its seconds nothing more is sent; a request that outlasts the longest silence is unfinished."""
    assert len((await drive(ScriptedTarget(), scenario(sessions=None, bounds={"requests": 7}))).requests) == 7
    plan = scenario(
        sessions=None, bounds={"seconds": 10, "request_seconds": 5}, output={"least": 3, "most": 3}
    )
    script = Script(first_seconds=1.0, gap_seconds=0.5)
    run = await drive(ScriptedTarget(lambda number: script), plan)
    assert all(request.sent_at < 10 for request in run.requests)
    assert len(run.requests) == 2 * 5
    endless = Script(first_seconds=1.0, gap_seconds=1.0, deltas=10_000)
    run = await drive(ScriptedTarget(lambda number: endless), plan)
    assert {request.outcome for request in run.requests} == {Outcome.UNFINISHED}
    assert run.ended_at == pytest.approx(15)
    assert all(len(request.stamps) == 14 for request in run.requests)


@trio_test
async def test_a_late_generator_makes_its_run_void(autojump_clock: trio.testing.MockClock) -> None:
    health = HealthMeter()
    for _ in range(20):
        health.lateness(0.5)
    assert "was late by 0.500 s" in (health.result().void or "")
    assert HealthMeter().result().void is None
