"""The table of states and moves: it is closed, and no other move is legal."""

from __future__ import annotations

from collections.abc import Collection

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scheduler.requests.lifecycle import IN_ENGINE, TRANSITIONS, Event, IllegalMove, State, move
from scheduler.requests.table import Requests
from tests.scheduler.requests.records import make_record


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


def test_a_prefill_never_follows_a_token_of_the_same_engine() -> None:
    """The one way through an engine: submitted, prefilling, decoding; but for a row that was preempted."""
    but = {Event.LOSE, Event.PREEMPT, Event.ADMIT}
    assert (State.DECODING, Event.PREFILL) not in TRANSITIONS
    assert State.PREFILLING not in reachable(State.DECODING, but)
    assert State.SUBMITTED not in reachable(State.PREFILLING, {Event.LOSE})


def test_a_slot_is_waited_for_before_it_is_had_or_after_it_was_lost() -> None:
    """Nothing but a preemption takes it away."""
    assert State.WAITING not in reachable(State.PREFILLING, {Event.LOSE})
    assert State.WAITING not in reachable(State.PREEMPTED, {Event.LOSE})
    assert move(State.PREEMPTED, Event.WAIT) is State.PREEMPTED


def test_no_request_goes_back_to_the_queue() -> None:
    """It has had its turn: an engine's death does not cost it another wait."""
    assert State.QUEUED not in reachable(State.SUBMITTED)
    assert move(State.AWAITING_ENGINE, Event.DISPATCH) is State.SUBMITTED


def test_only_what_an_engine_has_can_be_lost_with_it() -> None:
    """What is queued, has left or waits for the next engine is none of that death's affair."""
    lost = {state for state, event in TRANSITIONS if event is Event.LOSE}
    assert lost == set(IN_ENGINE)


@given(st.lists(st.sampled_from(Event), max_size=30))
def test_a_record_follows_the_table_and_nothing_else(events: list[Event]) -> None:
    """Legal moves go as written; others raise, name both, and leave the record in its state."""
    requests, record = Requests(), make_record()
    record.engine = "0"
    for event in events:
        before = record.state
        if (before, event) in TRANSITIONS:
            requests.move(record, event)
            assert record.state is TRANSITIONS[before, event]
        else:
            with pytest.raises(IllegalMove, match=f"{event.name}.*{before.name}"):
                requests.move(record, event)
            assert record.state is before
