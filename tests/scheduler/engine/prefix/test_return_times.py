"""What is learned of sessions' gaps, by session and by what they wait for, and what it is worth to keep
something at an age."""

from __future__ import annotations

from math import isclose

from hypothesis import given, settings
from hypothesis import strategies as st

from scheduler.engine.prefix.gap_history import (
    BUCKETS,
    EDGES,
    bucket_of,
    hit_densities,
)
from scheduler.engine.prefix.retention import Mark
from scheduler.engine.prefix.return_times import ReturnTimes
from tests.examples import examples

SESSION = ("", "s")


def taught(times: ReturnTimes, gap: float, kind: str, session: str = "s", turns: int = 20) -> float:
    """A session that comes back after `gap` each time, and now waits again since the time returned."""
    now = 0.0
    for _ in range(turns):
        times.ended(("", session), kind, now)
        now += gap
        times.returned(("", session), now)
    times.ended(("", session), kind, now)
    return now


def test_each_session_has_gaps_of_its_own() -> None:
    """At ten seconds the quick one is overdue, and the slow one is not expected for long."""
    times = ReturnTimes(10)
    taught(times, 2.0, "", "quick")
    taught(times, 300.0, "", "slow")
    assert times.density(("", "quick"), 0.1) > 20 * times.density(("", "slow"), 0.1)
    assert times.density(("", "slow"), 200.0) > times.density(("", "quick"), 200.0)


def test_a_new_session_is_judged_by_what_it_waits_for() -> None:
    """Somebody else's tests took minutes, somebody else's reads a second."""
    times = ReturnTimes(10)
    taught(times, 1.0, "read", "a")
    taught(times, 200.0, "tests", "a")
    times.ended(("", "new"), "read", 0.0)
    reading = times.density(("", "new"), 0.1)
    times.ended(("", "new"), "tests", 0.0)
    assert reading > 5 * times.density(("", "new"), 0.1)


def test_kinds_of_other_salts_teach_nothing() -> None:
    """What one tenant's tools take is not told to another by what is evicted."""
    times = ReturnTimes(10)
    for salt in ("mine", "theirs"):
        for _ in range(30):
            times.ended((salt, "a"), "shell", 0.0)
            times.returned((salt, "a"), 1.0 if salt == "mine" else 500.0)
    for salt in ("mine", "theirs"):
        times.ended((salt, "new"), "shell", 0.0)
    assert times.density(("mine", "new"), 0.1) > 3 * times.density(("theirs", "new"), 0.1)


def test_what_never_returns_is_worth_little() -> None:
    """Turns that were evicted unused teach that their kind does not come back, and so does what no session
    owns; what is asked for again, the opposite."""
    times = ReturnTimes(1000)
    taught(times, 5.0, "tool", "agent")
    for number in range(200):
        times.ended(("", f"once-{number}"), "stop", 0.0)
        times.lost(("", f"once-{number}"), 100.0)
    times.ended(("", "another"), "stop", 0.0)
    times.ended(("", "working"), "tool", 0.0)
    assert times.density(("", "another"), 1.0) < 0.1 * times.density(("", "working"), 1.0)
    worths = [times.worth(Mark(0.0), 0.0, 0, 1.0)[0]]
    for observe in (times.evicted, times.hit):
        for _ in range(200):
            observe(Mark(0.0), 50.0)
        worths.append(times.worth(Mark(0.0), 0.0, 0, 1.0)[0])
    assert worths[1] < 0.5 * worths[0] < worths[2]


def test_a_return_after_its_eviction_still_counts() -> None:
    """Otherwise an evicted session would teach that it never returns, and be evicted again."""
    times = ReturnTimes(10)
    for turn in range(20):
        times.ended(SESSION, "", 100.0 * turn)
        times.lost(SESSION, 100.0 * turn + 10.0)
        times.returned(SESSION, 100.0 * turn + 90.0)
    times.ended(SESSION, "", 2000.0)
    assert times.density(SESSION, 70.0) > times.density(SESSION, 1.0)
    assert times.density(SESSION, 70.0) > 0.01


@settings(deadline=None, max_examples=examples(60))
@given(
    st.lists(
        st.tuples(
            st.sampled_from(["ended", "returned", "lost"]),
            st.integers(0, 9),
            st.integers(0, 9),
            st.floats(0.0, 500.0),
        ),
        max_size=120,
    )
)
def test_any_order_of_events_keeps_it_bounded(events: list[tuple[str, int, int, float]]) -> None:
    """Sessions, kinds and numbers: whatever happens, a worth is positive and finite, and memory has a
    bound."""
    times, now = ReturnTimes(4), 0.0
    for event, session, kind, passed in events:
        now += passed
        key = "", f"session-{session}"
        if event == "ended":
            times.ended(key, f"kind-{kind}", now)
        elif event == "returned":
            times.returned(key, now)
        else:
            times.lost(key, now)
        assert len(times) <= 4
        assert all(len(one.gaps) <= 4 for one in times._sessions.values())
        assert 0 < times.density(key, passed) < 10


PURE = settings(deadline=None)
shares = st.lists(st.floats(0.0, 1.0), min_size=BUCKETS, max_size=BUCKETS)


@PURE
@given(st.floats(-10.0, 1e9))
def test_an_age_lies_between_its_buckets_edges(age: float) -> None:
    """The last bucket has no end; before the first edge there is nothing."""
    bucket = bucket_of(age)
    assert 0 <= bucket < BUCKETS
    assert bucket == 0 or EDGES[bucket] <= age
    assert bucket == BUCKETS - 1 or age < EDGES[bucket + 1]


@PURE
@given(shares)
def test_a_density_is_the_best_of_all_times_to_stop(of_bucket: list[float]) -> None:
    """Compared with a sum for each end, written as the definition has it."""
    found = hit_densities(of_bucket)
    for start in range(BUCKETS):
        best, alive, hits, seconds = 0.0, 1.0, 0.0, 0.0
        for at in range(start, BUCKETS):
            hits += alive * of_bucket[at]
            seconds += alive * (EDGES[at + 1] - EDGES[at]) * (1 - of_bucket[at] / 2)
            best, alive = max(best, hits / seconds), alive * (1 - of_bucket[at])
        assert isclose(found[start], best, rel_tol=0.05, abs_tol=1e-12)
