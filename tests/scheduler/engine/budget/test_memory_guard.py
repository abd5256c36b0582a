"""What the guard gives up under memory pressure, in which order, and how it takes it back."""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

from scheduler.engine.budget.policy import (
    CALM_SECONDS,
    MOST_CALM_SECONDS,
    GivenUp,
    MemoryReading,
    Relief,
    allowed,
    relieved,
)
from scheduler.engine.device import Pressure
from scheduler.engine.planning.prefill import LEAST_CHUNK_TOKENS

_BUDGET = 1000
_TICK = 0.25
_AMPLE = MemoryReading(
    used=1000, limit=10_000, available=None, pressure=Pressure.NORMAL, kv=800, fixed_kv=200, pool=0
)


class Seen(NamedTuple):
    relief: Relief
    kv_bytes: int | None = None
    chunk_tokens: int | None = None
    admits: bool = True


def seen_of(given_up: GivenUp, fitting_tokens: int = 64) -> Seen:
    allowance = allowed(given_up, fitting_tokens)
    return Seen(allowance.relief, given_up.kv_bytes, allowance.chunk_tokens, allowance.admits)


class _Guarded:
    """One reading after another, each decision from what the last one left."""

    def __init__(self) -> None:
        self.given_up = GivenUp()
        self.now = 0.0

    def see(self, reading: MemoryReading, needed: int = 100, fitting: int = 64, times: int = 1) -> Seen:
        for _ in range(times):
            self.given_up = relieved(self.given_up, reading, _BUDGET, needed, self.now)
            self.now += _TICK
        return seen_of(self.given_up, fitting)


def test_cached_prefixes_go_first_by_as_much_as_is_short() -> None:
    allowance = _Guarded().see(replace(_AMPLE, used=9_950))
    assert allowance == Seen(Relief.EVICT, kv_bytes=800 - 50)


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
    assert guarded.see(_AMPLE) == Seen(Relief.NONE)


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
