"""Parts of a step: nested, on clocks of the test; and which steps count."""

from __future__ import annotations

import pytest

from loadtests.step.commands import counts, steady, times
from loadtests.step.steps import REST, Parts, Run, Step


class _Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def test_an_inner_part_is_not_the_outer_ones() -> None:
    clock, processor = _Clock(), _Clock()

    class Engine:
        def take(self, seconds: float) -> None:
            clock.now += seconds
            processor.now += seconds / 2

        def outer(self) -> None:
            self.take(1.0)
            self.inner()
            self.take(2.0)

        def inner(self) -> None:
            self.take(4.0)

        def broken(self) -> None:
            self.take(8.0)
            raise RuntimeError("broken")

    parts, engine = Parts(clock, processor), Engine()
    for name, part in (("outer", "plan"), ("inner", "graph"), ("broken", "read")):
        parts.measure(Engine, name, part)
    engine.take(16.0)
    engine.outer()
    with pytest.raises(RuntimeError, match="broken"):
        engine.broken()
    times = {REST: (16.0, 8.0), "plan": (3.0, 1.5), "graph": (4.0, 2.0), "read": (8.0, 4.0)}
    assert parts.end_step() == times
    engine.inner()
    assert parts.end_step() == {REST: (0.0, 0.0), "graph": (4.0, 2.0)}


def _steps(*rows: int, **counts: int) -> Run:
    return Run([Step(one, {"plan": (0.001 * at, 0.001)}, counts) for at, one in enumerate(rows)])


def test_only_steps_of_all_rows_count_and_not_the_first_ones() -> None:
    timed = _steps(0, 2, 2, 2, 2, 1, 2, 2, 2, calls=7)
    assert len(steady(timed, rows=2)) == 3
    assert times(timed, rows=2)["plan"][0] == times(timed, rows=2)["whole step"][0] == pytest.approx(7.0)
    assert counts(timed, rows=2) == {"calls": 7}
    with pytest.raises(ValueError, match="no step gave all 3 rows"):
        times(timed, rows=3)
