"""Placements by the share of agents' prompts that engines find cached, on simulated engines."""

from __future__ import annotations

from dataclasses import replace

from loadtests.chaos.report import text
from loadtests.pool.affinity import (
    PLACEMENTS,
    AffinityPlan,
    RoundRobin,
    Shares,
    complaints,
    least_loaded,
    run,
)
from loadtests.pool.commands import of_affinity
from scheduler.engines.placement import Candidate
from scheduler.engines.speeds import Speeds

ONE = Shares("one engine", 1, prompt_tokens=1000, cached_tokens=900, requests=9, moves=0, session_seconds=9.0)
OWN = replace(ONE, placement="least seconds", engines=4, cached_tokens=860)


def candidate(engine: str, requests: int) -> Candidate:
    return Candidate(engine, requests, 8, 0, 0, Speeds(512))


def test_the_pools_own_placement_is_held_to_one_engine() -> None:
    """0.95 of its share; the others are there to compare."""
    others = replace(OWN, placement="round robin", cached_tokens=100)
    assert list(complaints([ONE, OWN, others])) == []
    (complaint,) = complaints([ONE, replace(OWN, cached_tokens=850), others])
    assert "0.850" in complaint


def test_least_loaded_looks_at_requests_only() -> None:
    """The first of equal ones is chosen."""
    some = [candidate("2", 3), candidate("10", 1), candidate("1", 1)]
    assert least_loaded(some, 100.0, "2").engine == "1"


def test_round_robin_takes_turns_among_those_with_room() -> None:
    """By number, not by name; an engine that is full or gone is passed over."""
    every = [candidate(str(number), 0) for number in (0, 2, 10)]
    turns = RoundRobin()
    assert [turns(every, 1.0, None).engine for _ in range(4)] == ["0", "2", "10", "0"]
    assert turns(every[2:], 1.0, "0").engine == "10"
    assert turns(every, 1.0, "0").engine == "0"


def test_four_engines_find_what_one_finds() -> None:
    """The pool's own placement reaches its bar, and beats both others."""
    plan = AffinityPlan(engines=3, sessions=6, turns=4, system_tokens=1024, own_tokens=256, growth_tokens=128)
    notes: list[str] = []
    found = run(plan, notes.append)
    assert [each.placement for each in found] == ["one engine", *PLACEMENTS]
    assert all(each.requests == 24 and each.prompt_tokens == found[0].prompt_tokens for each in found)
    assert list(complaints(found)) == []
    _, own, loaded, turns = found
    assert own.cached > max(loaded.cached, turns.cached)
    assert own.moves < min(loaded.moves, turns.moves)
    assert "least seconds" in text("Affinity", [], list(of_affinity(found)))


def test_a_run_is_equal_every_time() -> None:
    notes: list[str] = []
    plan = AffinityPlan(engines=2, sessions=2, turns=2, system_tokens=256, own_tokens=64, growth_tokens=32)
    assert run(plan, notes.append) == run(plan, notes.append)
