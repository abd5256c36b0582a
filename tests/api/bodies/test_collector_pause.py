"""The cycle collector is off during large work and a moment after it, and never for long."""

from __future__ import annotations

import gc
from collections.abc import Iterator

import pytest

from api.bodies.collector_pause import MOST_SECONDS, CollectorPause


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Iterator[Clock]:
    yield Clock()
    gc.unfreeze()
    gc.enable()


def test_it_lasts_from_the_first_work_to_the_resumption_after_the_last(clock: Clock) -> None:
    pause = CollectorPause(clock)
    pause.begin()
    pause.end()
    assert not gc.isenabled(), "what the work made is not decoded yet"
    pause.begin()
    pause.resume()
    assert not gc.isenabled(), "the next work goes on"
    pause.end()
    pause.resume()
    assert gc.isenabled()


def test_work_without_end_does_not_keep_it_off(clock: Clock) -> None:
    """What was made meanwhile is visited by no partial collection."""
    pause = CollectorPause(clock)
    for _ in range(2):
        pause.begin()
        pause.end()
        clock.now += MOST_SECONDS + 1
        assert not gc.isenabled()
        made = [[] for _ in range(10_000)]  # type: ignore[var-annotated]
        pause.begin()
        pause.end()
        assert gc.isenabled()
        assert gc.get_count()[0] < len(made)


def test_a_resumption_without_a_pause_changes_nothing(clock: Clock) -> None:
    CollectorPause(clock).resume()
    assert gc.isenabled()
