"""One memory budget divided among engines: never more than there is, and to those who use it."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given, settings
from hypothesis import strategies as st

from scheduler.fleet.memory_shares import EngineMemory, granted, leveled, shares
from tests.examples import examples

_GB = 10**9
_FLOOR = 2 * _GB


def engine(
    name: str, rows: float = 0, prefixes: float = 0, activity: float = 0.0, limit: float = 0
) -> EngineMemory:
    """In gigabytes, beside a floor of two."""
    least = _FLOOR + int(rows * _GB)
    return EngineMemory(name, _FLOOR, least, least + int(prefixes * _GB), int(limit * _GB), activity)


def kv(budget: float, *engines: EngineMemory) -> dict[str, float]:
    """What shares of a budget leave for KV, in gigabytes."""
    found = shares(int(budget * _GB), engines)
    assert not found.unplaced
    return {name: (limit - _FLOOR) / _GB for name, limit in found.limits.items()}


sizes = st.integers(0, 20 * _GB)
activities = st.sampled_from([0.0, 1e-9, 0.1, 0.5, 0.5, 1.0])
engines = st.lists(
    st.builds(
        lambda floor, rows, prefixes, limit, activity, fixed: EngineMemory(
            "", floor, floor + rows, floor + rows + prefixes, limit, activity, fixed and limit > 0
        ),
        *(sizes, sizes, sizes, sizes, activities, st.booleans()),
    ),
    max_size=6,
).map(lambda many: [replace(one, engine=str(number)) for number, one in enumerate(many)])
thoroughly = settings(deadline=None, max_examples=examples(80), derandomize=True)


@thoroughly
@given(st.integers(0, 80 * _GB), engines)
def test_shares_are_never_more_than_the_budget(budget: int, many: list[EngineMemory]) -> None:
    """Whatever is known. Those being loaded keep what they have."""
    found = shares(budget, many)
    fixed = sum(one.limit_bytes for one in many if one.fixed)
    assert sum(found.limits.values()) <= max(budget, fixed)
    assert all(found.limits[one.engine] == one.limit_bytes for one in many if one.fixed)
    assert {*found.limits, *found.unplaced} == {one.engine for one in many}
    assert not {*found.limits} & {*found.unplaced}


@thoroughly
@given(st.integers(0, 80 * _GB), engines)
def test_each_has_its_floor_or_does_not_fit(budget: int, many: list[EngineMemory]) -> None:
    found = shares(budget, many)
    placed = [one for one in many if one.engine in found.limits and not one.fixed]
    alone = len(found.limits) == 1
    for one in placed:
        assert found.limits[one.engine] >= one.floor_bytes or alone
    left = budget - sum(found.limits[one.engine] for one in many if one.fixed)
    needed = sum(one.floor_bytes for one in placed)
    for one in many:
        if one.engine in found.unplaced:
            assert needed + one.floor_bytes > left


@thoroughly
@given(st.integers(0, 80 * _GB), engines)
def test_each_has_what_its_rows_need_if_all_of_them_fit(budget: int, many: list[EngineMemory]) -> None:
    found = shares(budget, many)
    fixed = sum(one.limit_bytes for one in many if one.fixed)
    placed = [one for one in many if not one.fixed and one.engine in found.limits]
    if fixed + sum(one.least_bytes for one in placed) <= budget:
        assert all(found.limits[one.engine] >= one.least_bytes for one in placed)


@thoroughly
@given(st.integers(1, 80 * _GB), engines)
def test_shares_that_were_taken_stay(budget: int, many: list[EngineMemory]) -> None:
    """With the same needs, the shares of shares are the same: nothing moves twice."""
    found = shares(budget, many)
    taken = [replace(one, limit_bytes=found.limits.get(one.engine, 0)) for one in many]
    again = shares(budget, [one for one in taken if one.engine in found.limits])
    assert again.limits == found.limits


def test_one_alone_has_everything() -> None:
    assert kv(10, engine("a", limit=9.9)) == {"a": 8}
    assert shares(_GB, [engine("a")]).limits == {"a": _GB}


def test_a_busy_one_takes_an_idle_one_s_part() -> None:
    found = kv(14, engine("busy", rows=2, prefixes=8, activity=1.0), engine("idle"))
    assert found["busy"] > 9.9


def test_an_idle_one_keeps_what_nobody_needs() -> None:
    """Its prefixes stay while the busy one uses two gigabytes of ten, and go when that grows."""
    idle = engine("idle", prefixes=6)
    assert kv(14, engine("busy", prefixes=1, activity=1.0), idle)["idle"] > 5.9
    assert 3.4 < kv(14, engine("busy", prefixes=4, activity=1.0), idle)["idle"] < 3.6
    assert kv(14, engine("busy", prefixes=9, activity=1.0), idle)["idle"] < 0.1


def test_an_idle_one_gives_prefixes_and_never_rows() -> None:
    found = kv(14, engine("busy", prefixes=9, activity=1.0), engine("waits", rows=3, prefixes=3))
    assert 3 <= found["waits"] < 3.1


def test_one_that_has_no_use_for_its_part_leaves_it_to_those_that_fill_theirs() -> None:
    """As an embedding model, which keeps nothing: busy as it is, the other grows step by step."""
    embeds, part = engine("embeds", activity=0.5), 5.0
    for _ in range(10):
        found = kv(14, engine("fills", prefixes=part, activity=0.5), embeds)
        assert found["fills"] >= part - 0.001
        part = found["fills"]
    assert part > 8.7


def test_equal_activity_gives_equal_parts() -> None:
    """They divide what floors leave, whatever each has used of it until now."""
    for activity in (0.0, 0.5):
        full = [engine(name, rows=1, prefixes=5, activity=activity) for name in "abc"]
        found = kv(18, *full)
        assert max(found.values()) - min(found.values()) < 0.001
    found = kv(14, engine("a", rows=4, prefixes=8, activity=0.5), engine("b", prefixes=9, activity=0.5))
    assert abs(found["a"] - found["b"]) < 0.001


def test_more_rows_than_a_part_take_from_the_others_prefixes() -> None:
    found = kv(14, engine("a", rows=8, activity=0.5), engine("b", prefixes=9, activity=0.5))
    assert 8 <= found["a"] < 8.1


def test_rows_that_do_not_fit_together_leave_the_smallest_whole() -> None:
    found = kv(14, engine("a", rows=9, activity=1.0), engine("b", rows=7), engine("c", rows=1))
    assert found["c"] == 1
    assert found["a"] == found["b"] == 3.5


def test_small_changes_move_nothing() -> None:
    """A sixteenth of a share does, and so does a row that does not fit."""
    before = [engine("a", activity=0.5, limit=7), engine("b", activity=0.5, limit=7)]
    assert kv(14, *before) == {"a": 5, "b": 5}
    drifted = [replace(before[0], activity=0.53), before[1]]
    assert kv(14, *drifted) == {"a": 5, "b": 5}
    moved = [replace(before[0], activity=0.8), before[1]]
    assert kv(14, *moved)["a"] > 6
    rows = [replace(before[0], least_bytes=int(7.1 * _GB), activity=0.5), before[1]]
    assert kv(14, *rows)["a"] >= 5.1


def test_who_has_a_share_comes_before_a_newcomer() -> None:
    found = shares(5 * _GB, [engine("new", activity=1.0), engine("a", limit=3), engine("b", limit=2)])
    assert found.unplaced == ("new",)
    found = shares(3 * _GB, [engine("idle", limit=3), engine("busy", limit=2, activity=0.5)])
    assert found.unplaced == ("idle",)


amounts = st.integers(0, 100)


@thoroughly
@given(amounts, st.dictionaries(st.sampled_from("abcdef"), amounts))
def test_leveled_parts(total: int, wants: dict[str, int]) -> None:
    """All of it, to whom it is wanted by; who gets less than it wants gets no less than the others, but for
    the last indivisible byte."""
    parts = leveled(total, wants)
    assert parts.keys() == wants.keys()
    assert sum(parts.values()) == min(total, sum(wants.values()))
    for name, part in parts.items():
        assert 0 <= part <= wants[name]
        if part < wants[name]:
            assert part >= max(parts.values()) - 1


names = st.sampled_from("abcd")
by_name = st.dictionaries(names, amounts)


@thoroughly
@given(amounts, by_name, by_name, by_name)
def test_what_is_granted_was_free(
    budget: int, targets: dict[str, int], held: dict[str, int], least: dict[str, int]
) -> None:
    """After it, limits and use together are within the budget, or no more than before."""
    limits = granted(budget, targets, held, least)
    assert limits.keys() == targets.keys()
    assert all(limits[name] <= target for name, target in targets.items())
    after = sum(max(held.get(name, 0), limits.get(name, 0)) for name in held.keys() | limits.keys())
    assert after <= max(budget, sum(held.values()))
    for name, target in targets.items():
        # Who has to give back, does.
        assert limits[name] >= min(target, held.get(name, 0))


def test_needs_are_granted_before_wishes() -> None:
    limits = granted(100, {"a": 80, "b": 80}, {"a": 20, "b": 50}, {"a": 20, "b": 75})
    assert limits == {"a": 22, "b": 78} or limits == {"a": 23, "b": 77}
