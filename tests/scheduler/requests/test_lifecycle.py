"""The table of states and moves: it is closed, and no other move is legal."""

from __future__ import annotations

from collections.abc import Collection

import pytest

from scheduler.requests.lifecycle import IN_ENGINE, TRANSITIONS, Event, State, move


def reachable(start: State, but: Collection[Event] = ()) -> set[State]:
    """All states that some events (all `but` these) lead to from `start`, itself included."""
    found, frontier = {start}, [start]
    while frontier:
        state = frontier.pop()
        following = {
            move(state, event) for event in Event if event not in but and (state, event) in TRANSITIONS
        } - found
        found |= following
        frontier.extend(following)
    return found


def test_every_state_can_be_reached() -> None:
    """A request begins in the queue; a state that no event leads to would be dead code."""
    assert reachable(State.QUEUED) == set(State)


def test_every_event_is_legal_somewhere() -> None:
    """An event that no state takes would be dead code."""
    assert {event for _, event in TRANSITIONS} == set(Event)


@pytest.mark.parametrize("state", State)
def test_from_everywhere_there_is_a_way_to_the_end(state: State) -> None:
    """No state is a trap in which an id would stay in the tables."""
    assert State.RETIRED in reachable(state)


@pytest.mark.parametrize("state", [state for state in State if state is not State.RETIRED])
def test_whatever_has_not_retired_can_be_cancelled_and_retired(state: State) -> None:
    """A client may leave, and the engine may die, at any moment."""
    assert move(state, Event.CANCEL) in (State.CANCELLING, State.RETIRED)
    assert move(state, Event.RETIRE) is State.RETIRED


def test_retired_is_final() -> None:
    """A cancel may come too late, nothing else may come at all."""
    assert reachable(State.RETIRED) == {State.RETIRED}
    assert {event for state, event in TRANSITIONS if state is State.RETIRED} == {Event.CANCEL}


def test_a_cancel_is_never_taken_back() -> None:
    """Late tokens and progress leave a cancelled request cancelled."""
    assert reachable(State.CANCELLING) == {State.CANCELLING, State.RETIRED}


def test_no_request_goes_back_to_the_queue() -> None:
    """It has had its turn: an engine's death does not cost it another wait."""
    assert State.QUEUED not in reachable(State.SUBMITTED)
    assert move(State.AWAITING_ENGINE, Event.DISPATCH) is State.SUBMITTED


def test_only_what_an_engine_has_can_be_lost_with_it() -> None:
    """What is queued, has left or waits for the next engine is none of that death's affair."""
    lost = {state for state, event in TRANSITIONS if event is Event.LOSE}
    assert lost == set(IN_ENGINE)
