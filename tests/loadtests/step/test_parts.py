"""Parts of a step: nested, on clocks of the test."""

from __future__ import annotations

from threading import Thread

import pytest

from loadtests.step.parts import REST, Parts


class _Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


class _Engine:
    def __init__(self, clock: _Clock, processor: _Clock) -> None:
        self.clock, self.processor = clock, processor

    def _take(self, seconds: float) -> None:
        self.clock.now += seconds
        self.processor.now += seconds / 2

    def outer(self) -> str:
        self._take(1.0)
        self.inner()
        self._take(2.0)
        return "done"

    def inner(self) -> None:
        self._take(4.0)

    def broken(self) -> None:
        self._take(8.0)
        raise RuntimeError("broken")


def test_an_inner_part_is_not_the_outer_ones() -> None:
    clock, processor = _Clock(), _Clock()

    class Engine(_Engine):
        pass

    parts, engine = Parts(clock, processor), Engine(clock, processor)
    for name, part in (("outer", "plan"), ("inner", "graph"), ("broken", "read")):
        parts.measure(Engine, name, part)
    engine._take(16.0)
    assert engine.outer() == "done"
    with pytest.raises(RuntimeError, match="broken"):
        engine.broken()
    assert parts.end_step() == {
        REST: (16.0, 8.0),
        "plan": (3.0, 1.5),
        "graph": (4.0, 2.0),
        "read": (8.0, 4.0),
    }
    engine.inner()
    assert parts.end_step() == {REST: (0.0, 0.0), "graph": (4.0, 2.0)}


def test_another_thread_is_of_no_part() -> None:
    """The engine answers a Pulse in the thread that reads its link, at any moment of a step."""
    clock, processor = _Clock(), _Clock()

    class Engine(_Engine):
        pass

    parts, engine = Parts(clock, processor), Engine(clock, processor)
    for name, part in (("outer", "plan"), ("inner", "send")):
        parts.measure(Engine, name, part)
    other = Thread(target=engine.inner)
    other.start()
    other.join()
    assert parts.end_step() == {REST: (4.0, 2.0)}
