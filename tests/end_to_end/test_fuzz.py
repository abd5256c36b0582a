"""A small fuzz run: `make fuzz` sends five thousand bodies."""

from __future__ import annotations

import pytest
import trio

from loadtests.fuzz.bodies import bodies
from loadtests.fuzz.run import MODEL, FuzzPlan, run


@pytest.mark.timeout(300)
@pytest.mark.parametrize(("requests", "seed"), [(40, 7), pytest.param(200, 1, marks=pytest.mark.long)])
def test_numbers_at_an_edge_harm_nobody(requests: int, seed: int) -> None:
    """Subnormal, huge, negative zero, with grammars and tools, 32 at once: no engine dies, no answer fails,
    and the event loop never stalls."""
    notes: list[str] = []
    found = trio.run(run, FuzzPlan(requests=requests, seed=seed), notes.append)
    assert list(found.complaints()) == [], (notes, found)
    assert sum(found.statuses.values()) + found.cut == requests
    assert found.cut
    assert found.silence.probes


def test_equal_seeds_send_equal_bodies() -> None:
    """A reported body can be sent again."""
    assert bodies(50, 3, MODEL) == bodies(50, 3, MODEL)
    assert bodies(50, 3, MODEL) != bodies(50, 4, MODEL)
