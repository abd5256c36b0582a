"""A small chaos run on the real engine: `make chaos` has two hundred requests and twenty deaths."""

from __future__ import annotations

import pytest
import trio

from loadtests.chaos.run import Plan, run
from loadtests.chaos.strikes import kinds


@pytest.mark.timeout(300)
@pytest.mark.parametrize(
    ("requests", "deaths"), [(16, 2), pytest.param(30, len(kinds()), marks=pytest.mark.long)]
)
def test_no_death_changes_an_answer(requests: int, deaths: int) -> None:
    """Killed, crashed, stopped, out of memory, an exception: nothing lost, nothing twice, no error, and every
    greedy answer equals the undisturbed one. Sampled ones differ as far as float32 allows, which the run
    counts."""
    notes: list[str] = []
    found = trio.run(run, Plan(requests=requests, deaths=deaths, seed=5, poison=False), notes.append)
    assert list(found.complaints()) == [], notes
    assert found.server["deaths"] == sum(found.strikes.values()) == deaths
    # How many had begun when it died is the machine's.
    assert found.server["requests that resumed on another engine"] > 0
    of_memory = found.server.get("deaths reported as out_of_memory", 0)
    assert found.server["share of the KV budget at the end"] == pytest.approx(0.8**of_memory)
    assert deaths < len(kinds()) or found.strikes == {kind.value: 1 for kind in kinds()}
