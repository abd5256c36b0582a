"""Several engines' reports as one."""

from __future__ import annotations

import msgspec

from scheduler.engines.together import together
from scheduler.shared.messages import DiskCounters, Inspection
from scheduler.shared.reports import CacheReport, PrefixReport

CACHE = CacheReport(
    *(100, 3, 50, 1, 40, 20, 5, 0, 2, 90, 60, 70),
    evicted_tokens={"budget": 4},
    shared_prefixes=[PrefixReport(30, 2, 9, [1]), PrefixReport(20, 5, 1, [2])],
)
DISK = DiskCounters(1, 2, 3, 4, 5, 6, 7, 8, 9, {"read": 1}, 10)


def test_one_engines_report_is_its_own() -> None:
    """Unchanged, and not copied."""
    one = Inspection(1, 5, CACHE)
    assert together([one], 10) is one


def test_numbers_add_up_and_the_most_used_prefixes_come_first() -> None:
    """As many as were asked for, from all engines."""
    other = msgspec.structs.replace(
        CACHE,
        evicted_tokens={"cleared": 1, "superseded": 0},
        shared_prefixes=[PrefixReport(9, 3, 0, [3])],
    )
    found = together([Inspection(1, 5, CACHE, DISK), Inspection(2, 6, other), Inspection(3, 7, None)], 2)
    assert found.freed_bytes == 18
    assert found.cache is not None
    assert (found.cache.budget_bytes, found.cache.nodes, found.cache.hit_tokens) == (200, 6, 120)
    assert found.cache.evicted_tokens == {"budget": 4, "cleared": 1, "superseded": 0}
    assert [prefix.references for prefix in found.cache.shared_prefixes] == [5, 3]
    assert found.disk == DISK
