"""Which levels stay level and which grow."""

from __future__ import annotations

import os

from loadtests.chaos import report
from loadtests.chaos.levels import levels, of_process, that_grow
from loadtests.chaos.soak import Soak


def grown(*values: float, slack: float = 0.0) -> list[str]:
    return that_grow(levels([{"files": value} for value in values], {"files": slack}))


def test_level_is_what_ends_where_it_began() -> None:
    """Within a tenth, whatever happened in between."""
    assert grown(100, 100, 100, 900, 100, 100, 105, 108, 109) == []
    assert grown(100, 100, 100, 100, 100, 100, 120, 120, 120) == ["files grew from 100 to 120"]
    assert grown(100, 90, 80, 70, 60, 50) == []


def test_small_numbers_have_a_slack_of_their_own() -> None:
    """Three more open files than ten are no leak."""
    assert grown(10, 10, 10, 13, 13, 13, slack=4) == []
    assert grown(10, 10, 10, 15, 16, 17, slack=4) != []


def test_what_is_not_always_there_is_judged_by_when_it_is() -> None:
    """An engine that loads has no levels to compare."""
    samples = [{"a": 1.0}, {}, {"a": 1.0, "b": 5.0}, {}, {"a": 1.0, "b": 5.0}]
    assert [(level.name, level.first, level.last) for level in levels(samples, {})] == [
        ("a", 1, 1),
        ("b", 5, 5),
    ]


def test_a_process_is_looked_into() -> None:
    """This process: it has a value of each kind."""
    looked = of_process(os.getpid())
    assert looked["resident bytes"] > 1 << 20
    assert looked["open files"] >= 3
    assert looked["threads"] >= 1


def test_a_soak_complains_of_what_grew_and_what_changed() -> None:
    """And reports every level."""
    soak = Soak(levels=levels([{"files": 10.0}, {"files": 90.0}], {}), failed=1, greedy_parted=2)
    complaints = list(soak.complaints())
    assert complaints == ["1 answers failed", "2 greedy answers changed", "files grew from 10 to 90"]
    assert "10 → 90 (90)" in report.text("Soak", complaints, list(report.of_soak(soak)))
