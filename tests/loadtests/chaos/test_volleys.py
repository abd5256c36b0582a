"""Which engines of a pool die together, and which pauses count as those of one death."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as some

from loadtests.chaos.answers import Answer, Pause
from loadtests.chaos.findings import compare
from loadtests.chaos.report import of_chaos, text
from loadtests.chaos.strikes import Strike
from loadtests.chaos.volleys import (
    MOST_GAP_SECONDS,
    TRUSTED_DELTAS,
    Volley,
    early_gap,
    even_streams,
    gaps,
    plan,
)

ONE = Volley((Strike.KILL,), struck_at=100.0, back_at=110.0, deaths=1)


def paused(*pauses: tuple[float, float], deltas: int = TRUSTED_DELTAS) -> Answer:
    return Answer("text", pauses=[Pause(began, ended, deltas) for began, ended in pauses])


@settings(deadline=None, derandomize=True)
@given(some.integers(0, 60), some.integers(2, 9), some.integers(0, 9))
def test_one_to_three_engines_die_and_one_lives(moments: int, engines: int, seed: int) -> None:
    """At every moment; equal seeds plan equal deaths."""
    planned = plan(moments, engines, list(Strike), seed)
    assert len(planned) == moments
    assert all(1 <= len(kinds) <= min(3, engines - 1) for kinds in planned)
    assert planned == plan(moments, engines, list(Strike), seed)


def test_twenty_four_moments_have_all_that_is_to_be_shown() -> None:
    """Engines killed alone, for the gaps; every other kind alone; two and three at once."""
    planned = plan(24, 4, list(Strike), seed=0)
    assert planned[0] == (Strike.KILL,)
    assert planned.count((Strike.KILL,)) == 6
    assert {kinds[0] for kinds in planned if len(kinds) == 1} == set(Strike)
    assert {len(kinds) for kinds in planned} == {1, 2, 3}


def test_of_two_engines_one_dies() -> None:
    assert {len(kinds) for kinds in plan(20, 2, list(Strike), seed=0)} == {1}


@pytest.mark.parametrize(
    ("pauses", "gap"),
    [
        ([(99.9, 101.4)], 1.5),
        ([(99.9, 101.4), (105.0, 105.5)], 1.5),
        ([(109.0, 112.0)], 3.0),
        ([(90.0, 100.0)], 0.0),
        ([(110.0, 115.0)], 0.0),
        ([], 0.0),
    ],
)
def test_a_gap_is_a_pause_while_the_engine_is_dead(pauses: list[tuple[float, float]], gap: float) -> None:
    """From the strike until the next engine is ready; whichever stream paused."""
    assert gaps([ONE], [paused(), paused(*pauses)]) == [pytest.approx(gap)]


def test_only_streams_that_come_evenly_have_gaps() -> None:
    """The words of a call are held back until it is whole, with any death or none: in both undisturbed runs.
    What pauses in one of them only was the machine's."""
    held, once, even = paused((3.0, 9.0)), paused((5.0, 7.0)), paused((5.0, 5.5))
    assert even_streams({0: held, 1: once, 2: even}, {0: held, 1: even, 2: even}) == {1, 2}


@pytest.mark.parametrize(
    "other",
    [
        replace(ONE, kinds=(Strike.STOP,)),
        replace(ONE, kinds=(Strike.KILL, Strike.KILL), deaths=2),
        replace(ONE, deaths=2),
    ],
)
def test_other_deaths_have_no_bound(other: Volley) -> None:
    """A hung engine is found by its deadline; where two are dead, a third may be full; a planted poison kills
    one more."""
    assert gaps([other], [paused((99.0, 109.0))]) == []
    assert gaps([other, ONE], [paused((99.0, 109.0))]) == [10.0]


def test_a_long_gap_is_a_complaint_and_is_reported() -> None:
    """Beside the longest pause of the undisturbed run, which shows what the machine adds."""
    found = replace(compare([], {}, {}, {}), gaps=[0.3, MOST_GAP_SECONDS], early_gap_seconds=9.0)
    found = replace(found, usual_gap_seconds=0.7)
    assert list(found.complaints()) == []
    assert "2.00 s" in (shown := text("Chaos", [], list(of_chaos(found))))
    assert "0.70 s" in shown
    assert "9.00 s" in shown
    (complaint,) = replace(found, gaps=[0.3, MOST_GAP_SECONDS + 0.1]).complaints()
    assert "2.1 s" in complaint
    assert list(replace(found, gaps=[3.0], usual_gap_seconds=3.5).complaints()) == []


def test_a_run_of_one_engine_reports_no_gaps() -> None:
    """As before there were several."""
    assert "undisturbed run, after" not in text("Chaos", [], list(of_chaos(compare([], {}, {}, {}))))
    assert "killed" not in text("Chaos", [], list(of_chaos(compare([], {}, {}, {}))))


def test_a_stream_that_had_just_begun_is_apart() -> None:
    """It may be a suspect, which waits until the next engine is loaded, however long that takes."""
    answers = [paused((99.0, 109.0), deltas=TRUSTED_DELTAS - 1), paused((99.0, 99.5), (100.0, 100.5))]
    assert gaps([ONE], answers) == [0.5]
    assert early_gap([ONE], answers) == 10.0
    assert early_gap([replace(ONE, deaths=2)], answers) == 0.0
