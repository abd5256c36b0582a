"""A small chaos run on the real engine: `make chaos` has two hundred requests and twenty deaths."""

from __future__ import annotations

import pytest
import trio

from loadtests.chaos.run import Plan, run
from loadtests.chaos.strikes import kinds

REQUESTS = 30


@pytest.mark.timeout(300)
@pytest.mark.long
def test_a_death_of_each_kind_changes_no_answer() -> None:
    """Killed, crashed, stopped, out of memory, an exception: nothing lost, nothing twice, no error, and every
    greedy answer equals the undisturbed one. Sampled ones differ as far as float32 allows, which the run
    counts."""
    notes: list[str] = []
    found = trio.run(run, Plan(requests=REQUESTS, deaths=len(kinds()), seed=5, poison=False), notes.append)
    assert list(found.complaints()) == [], notes
    assert found.strikes == {kind.value: 1 for kind in sorted(kinds())}
    assert found.server["deaths"] == len(kinds())
    assert found.server["requests that resumed on another engine"] >= len(kinds())
    # One of the device's errors is also of memory.
    of_memory = found.server["deaths reported as out_of_memory"]
    assert found.server["share of the KV budget at the end"] == pytest.approx(0.8**of_memory)
    assert of_memory >= 1


@pytest.mark.timeout(300)
def test_two_deaths_change_no_answer() -> None:
    """A sample of all kinds, as the seed chooses."""
    notes: list[str] = []
    found = trio.run(run, Plan(requests=16, deaths=2, seed=5, poison=False), notes.append)
    assert list(found.complaints()) == [], notes
    assert found.server["deaths"] == sum(found.strikes.values()) == 2
    # How many had begun when it died is the machine's.
    assert found.server["requests that resumed on another engine"] > 0


@pytest.mark.timeout(600)
@pytest.mark.long
def test_slow_steps_and_clients_that_leave_cost_no_answer() -> None:
    """No engine is killed that computes or may be computing; one that hangs is. What it all costs in time is
    this machine's."""
    notes: list[str] = []
    plan = Plan(requests=REQUESTS, deaths=0, seed=5, poison=False, slow_steps=7)
    found = trio.run(run, plan, notes.append)
    assert list(found.complaints()) == [], notes
    assert sum(found.slow_steps.values()) == 7
    assert found.server["deaths"] == found.hung == 3
    assert found.left >= 7
