"""An engine's states: whatever happens in any order, it is where its last events say, or the move raises."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scheduler.engines.condition import TRANSITIONS, Event, State, condition_of, move
from scheduler.statistics import EngineCondition


def after(*events: Event) -> State:
    state = State.ABSENT
    for event in events:
        state = move(state, event)
    return state


def test_it_is_started_and_started_again_until_somebody_stops_it() -> None:
    lives = (Event.BEGIN, Event.READY, Event.END, Event.RETRY, Event.END, Event.RETRY, Event.READY)
    assert after(*lives) is State.READY
    assert after(*lives, Event.STOP, Event.END, Event.GONE) is State.ABSENT


def test_one_that_is_given_up_stays_so_until_somebody_begins_or_forgives() -> None:
    failed = (Event.BEGIN, Event.END, Event.GIVE_UP, Event.GONE)
    assert after(*failed) is State.FAILED
    assert after(*failed, Event.BEGIN) is State.STARTING
    assert after(*failed, Event.FORGIVE) is State.ABSENT


@given(st.lists(st.sampled_from(Event), max_size=4))
def test_what_was_on_its_way_starts_nothing_that_is_being_stopped(events: list[Event]) -> None:
    """Until it is gone."""
    state = after(Event.BEGIN, Event.STOP)
    for event in events:
        if (state, event) in TRANSITIONS and event is not Event.GONE:
            state = move(state, event)
            assert state is State.STOPPING


@given(st.sampled_from(State), st.sampled_from(Event))
def test_a_move_that_the_table_does_not_name_raises(state: State, event: Event) -> None:
    if (state, event) in TRANSITIONS:
        assert move(state, event) is TRANSITIONS[state, event]
    else:
        with pytest.raises(RuntimeError, match=f"{event.name} is not allowed in state {state.name}"):
            move(state, event)


def test_wherever_it_is_it_can_be_ended_for_good() -> None:
    """But where it has no process already."""
    for state in State:
        assert ((state, Event.GONE) in TRANSITIONS) == (state is not State.ABSENT)


def test_operators_see_whether_it_is_its_first_start() -> None:
    assert condition_of(State.STARTING, died=False) is EngineCondition.STARTING
    assert condition_of(State.STARTING, died=True) is EngineCondition.RESTARTING
    assert condition_of(State.BACKING_OFF, died=True) is EngineCondition.RESTARTING
    assert {condition_of(state, died=True) for state in State} == set(EngineCondition) - {
        EngineCondition.STARTING
    }
