"""An engine's states: whatever happens in any order, it is where its last events say, or the move raises."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scheduler.engines.condition import TRANSITIONS, EngineEvent, EngineState, condition_of, move
from scheduler.statistics import EngineCondition


def after(*events: EngineEvent) -> EngineState:
    state = EngineState.ABSENT
    for event in events:
        state = move(state, event)
    return state


@given(st.lists(st.sampled_from(EngineEvent), max_size=4))
def test_what_was_on_its_way_starts_nothing_that_is_being_stopped(events: list[EngineEvent]) -> None:
    """Until it is gone."""
    state = after(EngineEvent.BEGIN, EngineEvent.STOP)
    for event in events:
        if (state, event) in TRANSITIONS and event is not EngineEvent.GONE:
            state = move(state, event)
            assert state is EngineState.STOPPING


@given(st.sampled_from(EngineState), st.sampled_from(EngineEvent))
def test_a_move_that_the_table_does_not_name_raises(state: EngineState, event: EngineEvent) -> None:
    if (state, event) in TRANSITIONS:
        assert move(state, event) is TRANSITIONS[state, event]
    else:
        with pytest.raises(RuntimeError, match=f"{event.name} is not allowed in state {state.name}"):
            move(state, event)


def test_operators_see_whether_it_is_its_first_start() -> None:
    assert condition_of(EngineState.STARTING, died=False) is EngineCondition.STARTING
    assert condition_of(EngineState.STARTING, died=True) is EngineCondition.RESTARTING
    assert condition_of(EngineState.BACKING_OFF, died=True) is EngineCondition.RESTARTING
    assert condition_of(EngineState.READY, died=True, quarantined=True) is EngineCondition.QUARANTINE
    assert {condition_of(state, died=True) for state in EngineState} == set(EngineCondition) - {
        EngineCondition.STARTING,
        EngineCondition.QUARANTINE,
    }
