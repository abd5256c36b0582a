"""Whatever clients and engines do, in any order: nobody waits beside a free slot, nobody is lost, and a
poison takes no second engine with it."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from trio.testing import trio_test

from scheduler.config import EngineConfig, RecoveryConfig, load_message
from scheduler.engines.engine import Engine
from scheduler.errors import Draining
from scheduler.prefix_estimate import BLOCK_TOKENS
from scheduler.requests.lifecycle import State
from scheduler.shared.messages import (
    Cancel,
    Counters,
    Retired,
    RetireReason,
    StepOutput,
    TurnEnded,
)
from scheduler.shared.model_fingerprint import fingerprint
from scheduler.statistics import DeathCause
from tests.examples import examples
from tests.scheduler.engines.bench import NoLauncher, PoolBench
from tests.scheduler.engines.core_rules import each_is_in_one_place, nobody_waits_beside_room
from tests.scheduler.requests.records import events_of, finals_of, text_of

numbers = st.integers(0, 9)
MOST_DEATHS = RecoveryConfig().max_request_deaths


class PoolMachine(RuleBasedStateMachine):
    @initialize(
        engines=st.integers(1, 4), slots=st.integers(1, 3), lookahead=st.integers(0, 1), late=st.booleans()
    )
    def begin(self, engines: int, slots: int, lookahead: int, late: bool) -> None:
        self.bench = PoolBench(engines, slots=slots, lookahead=lookahead)
        if late:
            self.bench.read_late()
        self.credits = slots + lookahead

    @property
    def engines(self) -> list[Engine]:
        return list(self.bench.pool)

    def running(self, which: int) -> Engine | None:
        ready = [engine for engine in self.engines if engine.ready]
        return ready[which % len(ready)] if ready else None

    @rule(
        requests=st.integers(1, 4),
        session=st.sampled_from([None, "a", "b"]),
        timeout=st.sampled_from([None, 30.0]),
    )
    def arrive(self, requests: int, session: str | None, timeout: float | None) -> None:
        for _ in range(requests):
            self.bench.arrive(session, timeout_seconds=timeout)

    @rule(which=numbers)
    def become_ready(self, which: int) -> None:
        starting = [engine for engine in self.engines if not engine.ready]
        if starting:
            self.bench.ready(starting[which % len(starting)].name)

    @rule(
        which=numbers,
        cause=st.sampled_from([DeathCause.CRASHED, DeathCause.KILLED, DeathCause.HUNG]),
        in_step=st.none() | st.integers(0, 2),
    )
    def die(self, which: int, cause: DeathCause, in_step: int | None) -> None:
        if (engine := self.running(which)) is not None:
            self.bench.die(engine.name, cause, list(engine.on_board.values())[:in_step])

    @rule(which=numbers, steps=st.integers(1, 4))
    def step(self, which: int, steps: int) -> None:
        if (engine := self.running(which)) is not None:
            for _ in range(steps):
                self.bench.step(engine.name)

    @rule(which=numbers, whom=numbers, reason=st.sampled_from(["length", "stop", "failed", "refused"]))
    def retire(self, which: int, whom: int, reason: RetireReason) -> None:
        if (engine := self.running(which)) is not None and (rows := list(engine.on_board.values())):
            self.bench.step(engine.name, [rows[whom % len(rows)]], reason)

    @rule(parts=st.integers(1, 9))
    def read_on(self, parts: int) -> None:
        self.bench.read_on(parts)

    @rule(which=numbers, whom=numbers)
    def write_a_stop_string(self, which: int, whom: int) -> None:
        if (engine := self.running(which)) is not None and (rows := list(engine.on_board.values())):
            self.bench.compute(engine.name, [rows[whom % len(rows)]], token=ord("!"))

    @precondition(lambda self: bool(self.bench.accepted))
    @rule(which=st.integers(0, 99))
    def leave(self, which: int) -> None:
        record = self.bench.accepted[which % len(self.bench.accepted)]
        if record.state is not State.RETIRED and record.outcome is None:
            self.bench.cancel(record)

    @rule(seconds=st.floats(0, 40))
    def time_passes(self, seconds: float) -> None:
        """Requests expire, wherever they are."""
        self.bench.pass_time(seconds)

    @precondition(lambda self: bool(self.bench.accepted))
    @rule(which=st.integers(0, 99))
    def outgrow_a_frame(self, which: int) -> None:
        """It can be sent to no engine from now on."""
        self.bench.unsendable.add(self.bench.accepted[which % len(self.bench.accepted)].request_id)

    @rule()
    def add(self) -> None:
        if len(self.engines) < 6:
            self.bench.pool.add(NoLauncher())

    @rule(which=numbers)
    def remove(self, which: int) -> None:
        if len(self.engines) > 1:
            self.bench.pool.remove(self.engines[which % len(self.engines)].name)

    @invariant()
    def no_engine_has_more_than_it_may(self) -> None:
        for engine in self.engines:
            assert engine.requests <= self.credits

    @invariant()
    def nobody_waits_beside_a_free_place(self) -> None:
        nobody_waits_beside_room(self.bench.pool, self.bench.queue)
        open_ = [one for one in self.engines if one.room and not one.quarantined]
        assert self.bench.pool.has_room == bool(open_)
        assert self.bench.pool.room == sum(one.room for one in open_)

    @invariant()
    def suspects_run_one_at_a_time(self) -> None:
        """And none of them where another request could be blamed in its place, or it for another."""
        for engine in self.engines:
            suspects = [one for one in engine.on_board.values() if one.suspect and not one.trusted]
            assert len(suspects) <= 1
            if suspects and suspects[0].deaths >= MOST_DEATHS:
                assert engine.quarantined, "a new request would be a further suspect"

    @invariant()
    def suspects_wait_for_no_engine_that_will_not_come(self) -> None:
        suspects = self.bench.pool.awaiting(suspect=True)
        for suspect in suspects:
            own = next((one for one in self.engines if one.name == suspect.engine), None)
            takers = [one for one in self.engines if one.room] if own is None or own.given_up else [own]
            for engine in takers[:1]:
                assert not engine.takes_suspect(alone=suspect.deaths >= MOST_DEATHS) or not engine.room
        if not suspects:
            for engine in self.engines:
                assert not engine.quarantined or engine.suspect is not None

    @invariant()
    def each_request_is_in_one_place_and_leaves_once(self) -> None:
        """Where its state says; what has left has left nothing behind: no index, charge or timer."""
        bench, requests = self.bench, self.bench.requests
        here = [record for record in bench.accepted if record.state is not State.RETIRED]
        gone = [record for record in bench.accepted if record.state is State.RETIRED]
        assert list(requests) == here
        each_is_in_one_place(requests, bench.pool, here)
        assert sorted(map(id, bench.retired_records)) == sorted(map(id, gone))
        assert bench.uncharged == 0
        assert len(bench.queue._dispatched) == sum(one.dispatched_at is not None for one in here)
        timed = [one for one in here if one.request.timeout_seconds is not None]
        watched = bench.expiry._watched.keys()
        assert {one.request_id for one in timed if one.outcome is None} <= watched
        assert watched <= {one.request_id for one in timed}

    @invariant()
    def each_cancel_is_sent_to_its_engine_once(self) -> None:
        """And none that goes on."""
        for engine in self.engines:
            sent = [one.request_id for one in self.bench.sent_by_life(engine.name) if isinstance(one, Cancel)]
            assert len(sent) == len(set(sent))
            for record in engine.on_board.values():
                assert (record.request_id in sent) == (record.state is State.CANCELLING)

    @invariant()
    def equals_are_served_in_the_order_of_arrival(self) -> None:
        for session in (None, "a", "b"):
            served = [record for record in self.bench.submitted if record.request.session == session]
            assert served == sorted(served, key=lambda record: record.request_id)

    def teardown(self) -> None:
        """Each has its one final event, or has left."""
        if not hasattr(self, "bench"):
            return
        bench = self.bench
        for _ in range(2):
            bench.pool.end_all(Draining("going"))
            self.each_request_is_in_one_place_and_leaves_once()
            self.each_cancel_is_sent_to_its_engine_once()
        assert all(record.state is State.CANCELLING for record in bench.requests)
        for engine in self.engines:
            if engine.ready:
                bench.die(engine.name)
        for record in bench.accepted:
            assert record.state is State.RETIRED
            events = events_of(record)
            assert len(finals_of(events)) == (0 if record.outcome == "cancelled" else 1)
            assert "!" not in text_of(events)


TestPool = PoolMachine.TestCase
TestPool.settings = settings(
    max_examples=examples(60), stateful_step_count=30, deadline=None, derandomize=True
)


@settings(max_examples=examples(100), deadline=None, derandomize=True)
@given(
    engines=st.integers(1, 3),
    slots=st.integers(1, 4),
    lookahead=st.integers(0, 2),
    arrivals=st.lists(st.tuples(st.integers(0, 6), st.booleans()), min_size=1, max_size=14),
)
def test_exactly_the_poisons_fail_whatever_their_company(
    engines: int, slots: int, lookahead: int, arrivals: list[tuple[int, bool]]
) -> None:
    """An engine dies when one is in its step. `arrivals`: after how many turns each request comes, and
    whether it is one. All others end, and no poison kills more engines than its bound and one."""
    bench = PoolBench(engines, slots=slots, lookahead=lookahead)
    bench.ready(*range(engines))
    poisons: set[int] = set()
    deaths, coming, turns = 0, list(arrivals), 0
    while coming or any(record.state is not State.RETIRED for record in bench.accepted):
        turns += 1
        assert turns < 3000, "somebody waits for ever"
        while coming and coming[0][0] <= 0:
            record = bench.arrive()
            # The last id: it may have retired at once.
            poisons |= {record.request_id} if coming.pop(0)[1] else set()
        if coming:
            coming[0] = (coming[0][0] - 1, coming[0][1])
        for engine in list(bench.pool):
            if not engine.ready:
                bench.ready(engine.name)
                continue
            in_step = list(engine.on_board.values())[:slots]
            if any(record.request_id in poisons for record in in_step):
                deaths += 1
                bench.die(engine.name, DeathCause.CRASHED, in_step)
            else:
                ended = [record for record in in_step if record.output_tokens >= 7]
                bench.compute(engine.name, in_step, ended)
    outcomes = {record.request_id: record.outcome for record in bench.accepted}
    assert {one for one, outcome in outcomes.items() if outcome == "error"} == poisons
    assert deaths <= (MOST_DEATHS + 1) * len(poisons)


@pytest.mark.parametrize("cause", [DeathCause.CRASHED, DeathCause.OUT_OF_MEMORY])
def test_beside_one_other_engine_suspects_wait_for_the_restarted_one(cause: DeathCause) -> None:
    """One at a time, while new requests go to both; trusted ones go on at once."""
    bench = PoolBench(2, slots=6)
    bench.ready(0, 1)
    trusted = [bench.arrive() for _ in range(4)]
    for name in (0, 1):
        bench.trust(name)
    fresh = [bench.arrive() for _ in range(4)]
    assert [record.engine for record in fresh].count("0") == 2, "to the engine with the fewest requests"
    suspects = [record for record in fresh if record.engine == "0"]
    bench.die(0, cause)
    assert {record.engine for record in trusted} == {"1"}
    assert [record.state for record in suspects] == [State.AWAITING_ENGINE] * 2
    late = bench.arrive()
    assert late.state is State.QUEUED, "the healthy engine is full, the other one is not ready"
    bench.trust(1)
    bench.ready(0)
    assert [record.state for record in suspects] == [State.SUBMITTED, State.AWAITING_ENGINE]
    assert late.engine == "0", "it goes on beside the suspect"
    bench.trust(0)
    assert [record.engine for record in suspects] == ["0", "0"]


def test_new_requests_are_served_beside_a_suspect_that_computes_a_long_prompt() -> None:
    """It has killed an engine once, and computes for minutes now; ten others come, are answered and go."""
    bench = PoolBench(1, slots=4)
    bench.ready(0)
    suspect = bench.arrive()
    bench.die(0, DeathCause.HUNG)
    bench.ready(0)
    for _ in range(10):
        others = [bench.arrive() for _ in range(3)]
        bench.compute(0, others)
        bench.compute(0, others, others)
        assert all(record.state is State.RETIRED for record in others)
    assert (suspect.state, suspect.output_tokens) == (State.SUBMITTED, 0)


def test_a_suspect_at_its_limit_that_had_company_is_alone_the_next_time() -> None:
    """Two died twice, together: which of them it was is seen when each computes alone."""
    bench = PoolBench(1, slots=4)
    bench.ready(0)
    first, new = bench.arrive(), None
    for _ in range(MOST_DEATHS):
        bench.die(0)
        bench.ready(0)
        new = new or bench.arrive()
    assert new is not None
    assert (first.deaths, new.deaths) == (MOST_DEATHS, MOST_DEATHS - 1)
    assert bench.on_board(0) == [first]
    late = bench.arrive()
    assert late.state is State.QUEUED, "it would be a further suspect"
    assert bench.engine(0).quarantined
    bench.trust(0)
    assert bench.on_board(0) == [first, new, late], "neither it nor the other one needs to be alone"


def test_a_suspect_at_its_limit_boards_beside_trusted_requests_only() -> None:
    """Its engine has left the pool: where it goes on, a new one could be blamed for its next death."""
    bench = PoolBench(2, slots=4)
    bench.ready(0, 1)
    suspect = bench.arrive()
    for _ in range(MOST_DEATHS - 1):
        bench.die(0, DeathCause.HUNG, [suspect])
        bench.ready(0)
    for _ in range(3):
        bench.arrive()
    assert [len(bench.on_board(name)) for name in (0, 1)] == [2, 2]
    bench.pool.remove("0")
    bench.die(0, DeathCause.HUNG)
    assert suspect.deaths == MOST_DEATHS
    assert bench.engine(1).quarantined
    assert any(one is suspect for one in bench.awaiting)
    bench.trust(1)
    assert any(one is suspect for one in bench.on_board(1))


def test_what_a_leaver_has_not_read_is_no_part_of_its_answer() -> None:
    """Its engine had ended it: the rest of its tokens waited for their turn, and is not charged."""
    bench = PoolBench(1)
    bench.ready(0)
    bench.read_late()
    record = bench.arrive()
    for _ in range(3):
        bench.step(0)
    bench.step(0, [record])
    assert (record.state, record.output_tokens) == (State.ENDING, 3)
    bench.cancel(record)
    assert (record.state, record.output_tokens) == (State.RETIRED, 0)


def test_who_was_not_in_the_step_is_no_suspect() -> None:
    """It came while another one's prompt was computed: it goes on as if nothing had happened."""
    bench = PoolBench(1, slots=4)
    bench.ready(0)
    computed, came = bench.arrive(), bench.arrive()
    bench.die(0, DeathCause.HUNG, [computed])
    assert (computed.suspect, came.suspect) == (True, False)
    bench.ready(0)
    assert bench.on_board(0) == [came]
    bench.trust(0)
    assert bench.on_board(0) == [came, computed]


def test_suspects_of_a_crash_go_to_all_engines_at_once_but_to_the_last_one() -> None:
    """One at a time on an engine: when it is trusted the next one takes its place. New requests join them."""
    bench = PoolBench(4, slots=8)
    bench.ready(0, 1, 2, 3)
    records = [bench.arrive() for _ in range(16)]
    suspects = [record for record in records if record.engine == "0"]
    for name in (1, 2, 3):
        bench.trust(name)
    bench.die(0)
    assert sorted(record.engine or "" for record in suspects) == ["0", "0", "1", "2"]
    assert bench.engine(3).suspect is None
    assert {bench.arrive().engine for _ in range(4)} == {"1", "2", "3"}
    for name in (1, 2):
        bench.trust(name)
    assert all(record.engine in ("1", "2", "3") for record in suspects)
    assert sum(engine.suspect is None for engine in bench.pool if engine.ready) == 1
    for name in (1, 2, 3):
        bench.trust(name)
    assert not any(engine.suspect for engine in bench.pool)


def test_requests_of_an_engine_that_was_killed_from_outside_are_no_suspects() -> None:
    """All of them go on at once where there is room, the cause being known."""
    bench = PoolBench(4, slots=8)
    bench.ready(0, 1, 2, 3)
    records = [bench.arrive() for _ in range(16)]
    bench.die(0, DeathCause.KILLED)
    assert all(record.engine in ("1", "2", "3") for record in records)
    assert all(record.state is State.SUBMITTED for record in records)
    assert not any(engine.quarantined for engine in bench.pool)


def test_the_lost_resume_in_the_order_of_their_acceptance() -> None:
    """Though those of the first engine were lost last."""
    bench = PoolBench(2, slots=2)
    bench.ready(0, 1)
    records = [bench.arrive() for _ in range(4)]
    for name in (1, 0):
        bench.trust(name)
        bench.die(name)
    bench.ready(1)
    assert bench.on_board(1) == records[:2]


def test_the_engine_learns_what_a_session_waits_for() -> None:
    """When its answer is over: the tools that it called, else why it ended. Nothing without a session."""
    bench = PoolBench(1, slots=3)
    bench.ready(0)
    records = [bench.arrive("agent"), bench.arrive("agent"), bench.arrive()]
    records[1].called |= {"write", "read" * 50}
    bench.step(0, retired=records)
    assert [one for one in bench.sent["0"] if isinstance(one, TurnEnded)] == [
        TurnEnded("", "", "agent", "length"),
        TurnEnded("", "", "agent", ("read" * 50)[:128]),
    ]


def test_what_cannot_be_said_of_a_turn_ends_no_stream() -> None:
    """A tool's name with half a surrogate pair: only the prefix cache does not learn of it."""
    bench = PoolBench(1)
    bench.ready(0)
    calling, other = bench.arrive("agent"), bench.arrive()
    calling.called.add("\ud83d")
    bench.step(0, retired=[calling, other])
    assert (calling.state, other.state) == (State.RETIRED, State.RETIRED)
    assert not [one for one in bench.sent["0"] if isinstance(one, TurnEnded)]


@pytest.mark.parametrize("engines", [1, 2, 3, 4])
def test_a_poison_is_found_at_its_second_death_and_kills_one_healthy_engine_at_most(engines: int) -> None:
    """None where there is only one to go on with. Each second death has one culprit."""
    bench = PoolBench(engines, slots=4)
    bench.ready(*range(engines))
    records = [bench.arrive() for _ in range(3 * engines)]
    first = str(min(1, engines - 1))
    poison = next(record for record in records if record.engine == first)
    for engine in bench.pool:
        if engine.name != first:
            bench.trust(engine.name)
    died = [first]
    bench.die(first)
    while poison.outcome is None:
        for engine in list(bench.pool):
            if poison in bench.on_board(engine.name):
                died.append(engine.name)
                bench.die(engine.name)
            elif engine.ready:
                bench.trust(engine.name)
            elif engines < 3 or poison.engine == first:
                bench.ready(engine.name)
    assert len(died) == 2
    assert died == [first, first] or engines > 2
    assert poison.outcome == "error"
    assert [record.outcome for record in records if record is not poison] == [None] * (3 * engines - 1)


def test_suspects_of_an_engine_that_leaves_run_elsewhere_one_at_a_time() -> None:
    """New requests go on beside them there."""
    bench = PoolBench(2, slots=5)
    bench.ready(0, 1)
    suspects = [record for record in [bench.arrive() for _ in range(4)] if record.engine == "0"]
    bench.trust(1)
    bench.pool.remove("0")
    bench.die(0)
    assert bench.pool.names == ["1"]
    assert [record.engine for record in suspects].count("1") == 1
    assert bench.arrive().engine == "1"
    bench.trust(1)
    bench.trust(1)
    assert [record.engine for record in suspects] == ["1"] * len(suspects)


def test_a_request_that_leaves_before_its_prefill_takes_no_other_ones_prefix_along() -> None:
    """The system prompt is computed for another one: the engine will have it, but not what was the
    leaver's."""
    bench = PoolBench(1, slots=4)
    bench.ready(0)
    system, first, second = ([seed * 1000 + at for at in range(2 * BLOCK_TOKENS)] for seed in (1, 2, 3))
    stays = bench.arrive(prompt=[*system, *first])
    leaver = bench.arrive(prompt=[*system, *second])
    bench.cancel(leaver)
    retired = StepOutput([], [], [Retired(leaver.request_id, "cancelled")], Counters(row_tokens=10_000))
    bench.engine(0).step(retired)
    life = bench.engine(0).process
    assert life is not None
    likely = life.likely
    assert likely.cached_tokens(leaver.prepared.prefix_blocks, 10_000) == len(system)
    assert likely.cached_tokens(stays.prepared.prefix_blocks, 10_000) == len([*system, *first])


def test_each_engine_has_a_disk_tier_of_its_own() -> None:
    """The first one has the folder that one engine alone has: a restart with more engines finds its
    prefixes."""
    config = EngineConfig("mlx", "model", kv_disk="prefixes", sharers=2)
    loads = [load_message(config, number=number) for number in range(3)]
    assert [load.kv_disk for load in loads] == ["prefixes", "prefixes/engine-1", "prefixes/engine-2"]
    assert [load.sharers for load in loads] == [2, 2, 2]


@trio_test
async def test_engines_elsewhere_hear_what_the_model_is(tmp_path: Path) -> None:
    """By all of its bytes, read when the first of them is started: neither the server's start nor its loop
    waits for it. The server's own engines need no look at it."""
    (tmp_path / "config.json").write_text("{}")
    (tmp_path / "model.safetensors").write_bytes(bytes(1000))
    bench = PoolBench(2, model_folder=tmp_path, model="owner/name")
    loads = [await engine.load() for engine in bench.pool]
    assert {load.fingerprint for load in loads} == {fingerprint(tmp_path)}
    assert (await PoolBench(1, model_folder=tmp_path).engine(0).load()).fingerprint == ""
