"""What the guard gives up under memory pressure, in which order, and how it takes it back."""

from __future__ import annotations

from dataclasses import dataclass, replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from scheduler.engine.budget.policy import (
    CALM_SECONDS,
    MOST_CALM_SECONDS,
    Allowance,
    GivenUp,
    MemoryReading,
    Relief,
    allowed,
    relieved,
)
from scheduler.engine.device import Pressure
from scheduler.engine.prefill import LEAST_CHUNK_TOKENS
from tests.examples import examples

_BUDGET = 1000
_TICK = 0.25
_AMPLE = MemoryReading(
    used=1000, limit=10_000, available=None, pressure=Pressure.NORMAL, kv=800, fixed_kv=200, pool=0
)


class _Guarded:
    """One reading after another, each decision from what the last one left."""

    def __init__(self) -> None:
        self.given_up = GivenUp()
        self.now = 0.0

    def see(self, reading: MemoryReading, needed: int = 100, fitting: int = 64, times: int = 1) -> Allowance:
        for _ in range(times):
            self.given_up = relieved(self.given_up, reading, _BUDGET, needed, self.now)
            self.now += _TICK
        return allowed(self.given_up, fitting)


def test_cached_prefixes_go_first_by_as_much_as_is_short() -> None:
    allowance = _Guarded().see(replace(_AMPLE, used=9_950))
    assert allowance == Allowance(Relief.EVICT, kv_bytes=800 - 50)
    assert allowance.admits


def test_freed_buffers_count_before_prefixes() -> None:
    assert _Guarded().see(replace(_AMPLE, used=9_950, pool=30)).kv_bytes == 800 - 20


def test_the_order_is_prefixes_chunks_admission_rows() -> None:
    """While nothing helps, each reading gives up one level more."""
    guarded = _Guarded()
    tight = replace(_AMPLE, used=11_000)
    seen = [guarded.see(tight) for _ in range(5)]
    assert [allowance.relief for allowance in seen] == [1, 2, 3, 4, 4]
    assert [allowance.admits for allowance in seen] == [True, True, False, False, False]
    assert [allowance.chunk_tokens for allowance in seen] == [None, 64, 64, 64, 64]
    kept = [allowance.kv_bytes for allowance in seen]
    assert kept[:3] == [200, 200, 200], "what rows need is not evictable"
    assert kept[3] is not None
    assert kept[3] < 200, "now a row is preempted"


def test_a_chunk_has_a_floor_whatever_fits() -> None:
    assert _Guarded().see(replace(_AMPLE, used=11_000), fitting=0, times=4).chunk_tokens == LEAST_CHUNK_TOKENS


def test_a_warning_of_the_system_leaves_a_quarter_of_the_budget_and_all_rows() -> None:
    """A Mac with many programs may warn for hours."""
    guarded, reading = _Guarded(), replace(_AMPLE, pressure=Pressure.WARN)
    for _ in range(100):
        allowance = guarded.see(reading)
        assert allowance.kv_bytes is not None
        reading = replace(reading, kv=min(reading.kv, allowance.kv_bytes))
    assert allowance.relief is Relief.EVICT
    assert _BUDGET // 4 <= reading.kv <= _BUDGET // 4 + 1


def test_critical_pressure_takes_everything_in_turn() -> None:
    guarded = _Guarded()
    empty = replace(_AMPLE, pressure=Pressure.CRITICAL, kv=200, fixed_kv=200)
    assert guarded.see(empty, times=4).relief is Relief.PREEMPT


def test_relief_ends_one_level_at_a_time_after_a_calm() -> None:
    guarded = _Guarded()
    guarded.see(replace(_AMPLE, used=11_000), times=3)
    started = guarded.now
    levels = []
    while guarded.given_up.relief:
        levels.append(guarded.see(_AMPLE).relief)
        assert guarded.now < 300
    assert levels == sorted(levels, reverse=True)
    assert guarded.now - started >= 2 * CALM_SECONDS
    assert guarded.see(_AMPLE) == Allowance()


def test_room_for_one_chunk_keeps_relief_but_does_not_deepen_it() -> None:
    """Between what is needed and twice that: neither up nor down."""
    guarded = _Guarded()
    before = guarded.see(replace(_AMPLE, used=9_950))
    assert guarded.see(replace(_AMPLE, used=9_850), times=400) == before


def test_a_calm_that_does_not_last_is_waited_for_longer() -> None:
    """Another program that takes memory and gives it back every few seconds."""
    guarded, tight = _Guarded(), replace(_AMPLE, used=9_950)
    ends = []
    for _ in range(12):
        guarded.see(tight)
        began = guarded.now
        before = guarded.see(_AMPLE)
        while guarded.see(_AMPLE) == before:
            assert guarded.now - began <= MOST_CALM_SECONDS + 2 * _TICK
        ends.append(guarded.now - began)
    assert ends[-1] >= MOST_CALM_SECONDS
    assert ends[0] < 2 * CALM_SECONDS


@dataclass
class _Machine:
    """Memory by arithmetic: weights, rows, cached prefixes, and another program."""

    limit: int
    weights: int
    peak: int
    outside: int = 0
    rows: int = 0
    cached: int = 0
    most: int = 0

    def reading(self) -> MemoryReading:
        used = self.weights + self.rows + self.cached
        return MemoryReading(
            used,
            self.limit,
            self.limit + self.limit // 10 - used - self.outside,
            Pressure.NORMAL,
            self.rows + self.cached,
            self.rows,
        )

    def obey(self, allowance: Allowance, budget: int) -> None:
        bound = budget if allowance.kv_bytes is None else min(budget, allowance.kv_bytes)
        self.cached = max(0, min(self.cached, bound - self.rows))
        while allowance.relief is Relief.PREEMPT and self.rows > max(bound, 20):
            self.rows = max(20, self.rows - 20)
        self.most = max(self.most, self.weights + self.rows + self.cached)


outsides = st.lists(st.tuples(st.integers(1, 200), st.integers(0, 900)), min_size=1, max_size=8)


@settings(deadline=None, max_examples=examples(200))
@given(outsides, st.integers(0, 10))
def test_a_farm_beside_other_programs_stays_within_memory_and_makes_progress(
    phases: list[tuple[int, int]], growth: int
) -> None:
    """Rows grow by a fifth of a chunk's peak between two readings at most. The whole of memory is exceeded
    by no more than a chunk's peak after the readings that it takes to give everything up; a row always
    runs; with constant outside memory the levels come to rest."""
    machine = _Machine(limit=1000, weights=200, peak=50)
    given_up, now, budget = GivenUp(), 0.0, 1000 - 200 - 50
    for ticks, outside in phases:
        machine.outside = outside
        changes, last = 0, given_up.relief
        for tick in range(ticks):
            given_up = relieved(given_up, machine.reading(), budget, machine.peak, now)
            allowance = allowed(given_up, 64)
            machine.obey(allowance, budget)
            if tick > 8:
                # All levels have been passed: what is left is one row and the weights.
                least = machine.weights + 20 + growth
                whole = machine.weights + machine.rows + machine.cached + outside
                assert whole <= max(machine.limit * 11 // 10 + growth, least + outside)
            changes += given_up.relief is not last
            last = given_up.relief
            now += _TICK
            bound = budget if allowance.kv_bytes is None else min(budget, allowance.kv_bytes)
            machine.cached = min(machine.cached + growth, max(0, bound - machine.rows))
            if not machine.rows or (allowance.admits and machine.rows + 20 <= bound):
                machine.rows += 20
        assert changes <= 4 + 2 * ticks * _TICK / CALM_SECONDS
        assert machine.rows >= 20, "one row always runs"


@pytest.mark.parametrize("outside", [0, 300, 600, 900])
def test_beside_constant_programs_the_levels_come_to_rest(outside: int) -> None:
    """At most one change in MOST_CALM_SECONDS at the end: no oscillation."""
    machine = _Machine(limit=1000, weights=200, peak=50, outside=outside)
    given_up, now, budget = GivenUp(), 0.0, 750
    changed_at = []
    for _ in range(8000):
        before = given_up.relief
        given_up = relieved(given_up, machine.reading(), budget, machine.peak, now)
        allowance = allowed(given_up, 64)
        machine.obey(allowance, budget)
        if given_up.relief is not before:
            changed_at.append(now)
        now += _TICK
        machine.cached = min(machine.cached + 5, max(0, budget - machine.rows))
    late = [at for at in changed_at if at > now - 4 * MOST_CALM_SECONDS]
    assert len(late) <= 8
