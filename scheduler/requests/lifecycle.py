"""The states a request can be in, and the only moves between them.

Rule: everything that decides whether a move is legal is in `TRANSITIONS`. An illegal move raises and
leaves the state as it was. An id leaves the parent's tables when its state becomes RETIRED.
"""

from __future__ import annotations

from enum import Enum, auto

from scheduler.errors import LinkError


class State(Enum):
    QUEUED = auto()
    """Accepted; in the intake queue."""
    SUBMITTED = auto()
    """Sent to the engine; no progress heard yet."""
    PREFILLING = auto()
    DECODING = auto()
    AWAITING_ENGINE = auto()
    """Its engine is gone; the next one will go on with it where it stopped."""
    CANCELLING = auto()
    """`Cancel` sent; whatever still arrives for it is dropped until `Retired`."""
    RETIRED = auto()


class Event(Enum):
    DISPATCH = auto()
    PREFILL = auto()
    TOKEN = auto()
    CANCEL = auto()
    EXPIRE = auto()
    """Its time is up. Ends as a cancel does, but only what still waits for its answer can run out of time:
    a request that has its final event has no deadline any more."""
    LOSE = auto()
    """The engine that had it is gone."""
    RETIRE = auto()


class IllegalMove(LinkError):
    """An event that its state does not allow. The engine says what cannot be, so it is treated as broken."""


_IN_ENGINE = (State.SUBMITTED, State.PREFILLING, State.DECODING)

TRANSITIONS: dict[tuple[State, Event], State] = {
    (State.QUEUED, Event.DISPATCH): State.SUBMITTED,
    (State.SUBMITTED, Event.PREFILL): State.PREFILLING,
    (State.PREFILLING, Event.PREFILL): State.PREFILLING,
    (State.SUBMITTED, Event.TOKEN): State.DECODING,
    (State.PREFILLING, Event.TOKEN): State.DECODING,
    (State.DECODING, Event.TOKEN): State.DECODING,
    # The next engine's way with it begins like a new one's; it may have tokens already.
    **{(state, Event.LOSE): State.AWAITING_ENGINE for state in _IN_ENGINE},
    (State.AWAITING_ENGINE, Event.DISPATCH): State.SUBMITTED,
    # What no engine has is over at once when it is cancelled or expires: nothing is left to wait for.
    **{
        (state, event): State.RETIRED
        for state in (State.QUEUED, State.AWAITING_ENGINE)
        for event in (Event.CANCEL, Event.EXPIRE, Event.RETIRE)
    },
    **{(state, Event.CANCEL): State.CANCELLING for state in _IN_ENGINE},
    **{(state, Event.EXPIRE): State.CANCELLING for state in _IN_ENGINE},
    **{(state, Event.RETIRE): State.RETIRED for state in (*_IN_ENGINE, State.CANCELLING)},
    (State.CANCELLING, Event.PREFILL): State.CANCELLING,
    (State.CANCELLING, Event.TOKEN): State.CANCELLING,
    (State.CANCELLING, Event.CANCEL): State.CANCELLING,
    (State.RETIRED, Event.CANCEL): State.RETIRED,
}


def move(state: State, event: Event) -> State:
    """The state after `event`. Raises IllegalMove."""
    try:
        return TRANSITIONS[state, event]
    except KeyError:
        raise IllegalMove(f"{event.name} is not allowed in state {state.name}") from None
