"""A small fuzz run: `make fuzz` sends ten thousand bodies."""

from __future__ import annotations

from pathlib import Path

import pytest
import trio

from loadtests.fuzz.run import FuzzPlan, run

_ADAPTER = f"red={Path('tests/scheduler/models/adapters/red').absolute()}"


@pytest.mark.timeout(300)
@pytest.mark.parametrize(("requests", "seed"), [(40, 7), pytest.param(200, 1, marks=pytest.mark.long)])
def test_numbers_at_an_edge_harm_nobody(requests: int, seed: int) -> None:
    """Subnormal, huge, negative zero, with grammars, tools and an adapter, 32 at once: no engine dies, no
    answer fails, the event loop never stalls, and the server's memory does not grow."""
    notes: list[str] = []
    plan = FuzzPlan(requests, seed, adapters=(_ADAPTER,), most_silent_seconds=0.25, calm_seconds=1.0)
    found = trio.run(run, plan, notes.append)
    assert list(found.complaints(plan)) == [], (notes, found)
    assert sum(found.statuses.values()) + found.cut == requests
    assert found.cut
    assert found.silence.probes
    assert set(found.resident_bytes) == {"server", "engine"}
