"""When caches are full, and what counts as growth from then on."""

from __future__ import annotations

from collections.abc import Iterator

from hypothesis import given, settings
from hypothesis import strategies as st

from loadtests.cache_soak.plateau import complaints, fill_times, judged

_LEAST = {"sessions": 50.0}


def samples(
    count: int, full_at: int, *, resident: float = 0.0, bound: float = 64e6
) -> Iterator[dict[str, float]]:
    """A cache that is full at a sample and then goes up and down with its entries; a process that grows by
    `resident` bytes a sample from then on."""
    for at in range(count):
        yield {
            "ids": min(bound, bound * at / full_at) - (at % 3) * 1e6,
            "sessions": 10.0 * at,
            "server: resident bytes": 200e6 + bound * min(1, at / full_at) + resident * max(0, at - full_at),
        }


def said(*values: dict[str, float]) -> list[str]:
    return list(complaints(values, ["ids"], _LEAST))


def test_a_cache_is_full_when_it_has_nearly_all_that_it_ever_has() -> None:
    """A count is when it has reached its least; what never happens, after the last sample."""
    found = list(samples(40, 10))
    assert fill_times(found, ["ids"], _LEAST) == {"ids": 10, "sessions": 5}
    assert fill_times(found, [], {"sessions": 1000.0}) == {"sessions": 40}


def test_what_stays_level_once_caches_are_full_does_not_grow() -> None:
    """What they took to be filled is no growth, nor that sessions go on."""
    found = list(samples(60, 15))
    assert said(*found) == []
    assert {level.name for level in judged(found, ["ids"], _LEAST)} == {"ids", "server: resident bytes"}


def test_a_process_that_grows_behind_full_caches_is_a_leak() -> None:
    """By more than 3 % and 6 MB between the first third and the last."""
    [complaint] = said(*samples(60, 15, resident=1e6))
    assert complaint.startswith("server: resident bytes grew from ")
    assert said(*samples(60, 15, resident=0.2e6)) == []


def test_a_cache_without_a_bound_leaves_nothing_to_judge() -> None:
    """As does a run that is too short; it names what was late."""
    [complaint] = said(*samples(60, 59))
    assert "ids reached the highest value" in complaint
    [complaint] = said(*samples(4, 1))
    assert "sessions reached" in complaint
    assert said() != []


@given(full_at=st.integers(1, 40), leak=st.floats(1.2e6, 1e7))
@settings(derandomize=True, deadline=None)
def test_no_leak_is_missed_however_early_caches_are_full(full_at: int, leak: float) -> None:
    """A leak of 1.2 MB a sample is found in a run of which a third or more is judged."""
    assert said(*samples(60, full_at, resident=leak)) != []
