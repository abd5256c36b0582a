"""More load than the engine can serve, from clients with timeouts: whole scheduler, scripted engine, virtual
time. A request that cannot be served in time is refused immediately, and no other is."""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import dataclass, field

import trio
from hypothesis import given, settings
from hypothesis import strategies as st
from trio.testing import MockClock, trio_test

from scheduler.errors import DeadlineUnmeetable
from scheduler.events import Finished
from scheduler.processes.process import Exit, Session
from scheduler.service import Scheduler
from scheduler.shared.messages import ScriptedPlan
from tests.examples import examples
from tests.fakes.loopback_engine import LoopbackLauncher
from tests.fakes.scheduling import answer, ask, make_scheduler, running

STEP_SECONDS = 0.01
LOOKAHEAD = 4


def answer_seconds(tokens: int) -> float:
    """One step of prefill, and one for each token."""
    return STEP_SECONDS * (tokens + 1)


@dataclass
class Crowd:
    """Clients of one scheduler, and their outcomes."""

    scheduler: Scheduler
    fates: Counter[str] = field(default_factory=Counter)

    async def one(self, name: str, tokens: int, patience_seconds: float | None, choices: int = 1) -> None:
        asked_at = trio.current_time()
        request = ask(name, max_tokens=tokens, timeout_seconds=patience_seconds, choices=choices)
        try:
            _, final = await answer(self.scheduler, request)
        except DeadlineUnmeetable:
            assert trio.current_time() == asked_at, "a refusal comes at once"
            self.fates["refused"] += 1
        else:
            self.fates["finished" if isinstance(final, Finished) else "expired"] += 1

    async def burst(self, clients: int, tokens: int, patience_seconds: float | None = None) -> None:
        """All at once, until the last one has left."""
        async with trio.open_nursery() as nursery:
            for number in range(clients):
                nursery.start_soon(self.one, f"{number}", tokens, patience_seconds)

    async def flood(
        self, seed: int, per_second: float, seconds: float, tokens: int, patience_seconds: float
    ) -> None:
        """They arrive at random for `seconds`."""
        rng = random.Random(seed)
        async with trio.open_nursery() as nursery:
            ends = trio.current_time() + seconds
            while trio.current_time() < ends:
                nursery.start_soon(self.one, f"{rng.random()}", tokens, patience_seconds)
                await trio.sleep(rng.expovariate(per_second))


def crowd(slots: int, launcher: LoopbackLauncher | None = None) -> Crowd:
    plan = ScriptedPlan(step_seconds=STEP_SECONDS)
    return Crowd(make_scheduler(launcher or LoopbackLauncher(), plan, max_slots=slots, lookahead=LOOKAHEAD))


@settings(max_examples=examples(3), deadline=None)
@given(
    seed=st.integers(0, 1000),
    slots=st.integers(2, 8),
    tokens=st.integers(8, 32),
    patience=st.floats(4, 12),
    multiple=st.floats(1.5, 6),
)
def test_under_overload_who_is_accepted_is_served_and_the_engine_stays_full(
    seed: int, slots: int, tokens: int, patience: float, multiple: float
) -> None:
    """`patience` in answers. Hardly any admitted request expires, though all of them are close to their
    deadlines; and the engine is at capacity."""

    async def scenario() -> None:
        people = crowd(slots)
        patience_seconds = patience * answer_seconds(tokens)
        capacity = slots / answer_seconds(tokens)
        seconds = 4 * patience_seconds
        async with running(people.scheduler):
            await people.burst(4 * (slots + LOOKAHEAD), tokens)
            people.fates.clear()
            await people.flood(seed, multiple * capacity, seconds, tokens, patience_seconds)
        accepted = people.fates["finished"] + people.fates["expired"]
        assert people.fates["expired"] <= 0.03 * accepted + 1
        assert people.fates["finished"] >= 0.85 * capacity * seconds

    trio.run(scenario, clock=MockClock(autojump_threshold=0))


@trio_test
async def test_a_quiet_hour_does_not_make_the_engine_look_slow(autojump_clock: MockClock) -> None:
    """One at a time, three a second: these gaps measure arrivals. A crowd that can be served in time is
    admitted."""
    people = crowd(slots=8)
    async with running(people.scheduler):
        for number in range(30):
            await people.one(f"quiet {number}", 32, None)
        # 88 on 8 slots are done after eleven answers.
        await people.burst(88, 32, patience_seconds=12 * answer_seconds(32))
    assert people.fates == {"finished": 30 + 88}


@trio_test
async def test_the_time_without_an_engine_does_not_make_the_next_one_look_slow(
    autojump_clock: MockClock,
) -> None:
    """A full queue waited for it to load; once it serves them, its own drain rate counts."""

    class SlowLauncher(LoopbackLauncher):
        async def run(self, session: Session) -> Exit:
            await trio.sleep(50)
            return await super().run(session)

    people = crowd(slots=2, launcher=SlowLauncher())
    async with trio.open_nursery() as nursery:
        nursery.start_soon(people.scheduler.run)
        nursery.start_soon(people.burst, 40, 8)
        await people.scheduler.wait_ready()
        await trio.sleep(6 * answer_seconds(8))
        # Twelve of the forty are done, and fourteen answers' time is left to the others.
        await people.one("hurried", 8, 17 * answer_seconds(8))
        await people.scheduler.wait_idle()
        nursery.cancel_scope.cancel()
    assert people.fates == {"finished": 41}


@trio_test
async def test_all_choices_of_a_request_must_be_done_in_time(autojump_clock: MockClock) -> None:
    """If one could be, but twelve could not, they are refused as one."""
    people = crowd(slots=2)
    async with running(people.scheduler) as nursery:
        nursery.start_soon(people.burst, 20, 8)
        await trio.sleep(5.5 * answer_seconds(8))
        # Ten are left, on two slots.
        await people.one("twelve", 8, 9 * answer_seconds(8), choices=12)
        assert people.fates["refused"] == 1
        await people.one("one", 8, 9 * answer_seconds(8))
    assert people.fates["refused"] == 1
