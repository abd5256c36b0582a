"""Who goes on after an engine's death, where and beside whom: a poison takes no second engine with it. In any
order of events: `service_machine/`."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from trio.testing import trio_test

from scheduler.config import EngineConfig, RecoveryConfig, load_message
from scheduler.events import ToolCallStarted
from scheduler.prefix_estimate import BLOCK_TOKENS
from scheduler.requests.lifecycle import State
from scheduler.shared.messages import (
    Counters,
    Retired,
    StepOutput,
    TurnEnded,
)
from scheduler.shared.model_fingerprint import fingerprint
from scheduler.statistics import DeathCause
from tests.examples import examples
from tests.scheduler.engines.bench import PoolBench

MOST_DEATHS = RecoveryConfig().max_request_deaths


@settings(max_examples=examples(100), deadline=None)
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
    assert suspect.state is State.AWAITING_ENGINE
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


def test_the_engine_learns_what_a_session_waits_for() -> None:
    """When its answer is over: the tools that it called, else why it ended. Nothing without a session."""
    bench = PoolBench(1, slots=3)
    bench.ready(0)
    records = [bench.arrive("agent"), bench.arrive("agent"), bench.arrive()]
    for name in ("write", "read" * 50):
        records[1].put(ToolCallStarted(0, "id", name))
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


def test_suspects_of_an_engine_that_leaves_go_to_the_emptiest_ones_one_on_each() -> None:
    """Not both to the first engine, where the second would wait for the first."""
    bench = PoolBench(3, slots=5)
    bench.ready(0, 1, 2)
    suspects = [record for record in [bench.arrive() for _ in range(6)] if record.engine == "0"]
    bench.trust(1)
    bench.trust(2)
    bench.step(2, bench.on_board(2)[:1])
    bench.pool.remove("0")
    bench.die(0)
    assert bench.pool.names == ["1", "2"]
    assert [record.engine for record in suspects] == ["2", "1"]


def test_nobody_waits_when_all_engines_are_given_up_and_not_before() -> None:
    """Those in the queue and those whose engine died outlive one engine that cannot be started."""
    bench = PoolBench(2, slots=1)
    bench.ready(0, 1)
    records = [bench.arrive() for _ in range(3)]
    for name, outcome in ((1, None), (0, "error")):
        bench.engine(name).supervisor.failed_starts = RecoveryConfig().max_failed_starts
        bench.die(name)
        assert [record.outcome for record in records] == [outcome] * 3


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
