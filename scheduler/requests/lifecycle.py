"""A request's states, and the legal moves between them.

`TRANSITIONS` alone decides whether a move is legal. An illegal move raises and leaves the state as it was. An
id leaves the parent's tables when its state becomes RETIRED.
"""

from __future__ import annotations

from enum import Enum, auto

from scheduler.errors import LinkError


class State(Enum):
    QUEUED = auto()
    """Accepted; in the intake queue."""
    SUBMITTED = auto()
    """Sent to the engine, which has not reported progress yet."""
    PREFILLING = auto()
    DECODING = auto()
    AWAITING_ENGINE = auto()
    """Its engine died; the next one resumes it."""
    ENDING = auto()
    """No engine has it any more: the answer is whole, and the rest of it is being read."""
    CANCELLING = auto()
    """`Cancel` sent; output that still arrives is dropped until `Retired`."""
    RETIRED = auto()


class Event(Enum):
    DISPATCH = auto()
    PREFILL = auto()
    TOKEN = auto()
    CANCEL = auto()
    """The client left, or a deadline passed: the record's outcome says which."""
    LOSE = auto()
    """Its engine died."""
    END = auto()
    """Its engine has ended it."""
    RETIRE = auto()


class IllegalMove(LinkError):
    """An event that the state does not allow. If the engine sent it, the engine counts as broken."""


_IN_ENGINE = (State.SUBMITTED, State.PREFILLING, State.DECODING)

TRANSITIONS: dict[tuple[State, Event], State] = {
    (State.QUEUED, Event.DISPATCH): State.SUBMITTED,
    (State.SUBMITTED, Event.PREFILL): State.PREFILLING,
    (State.PREFILLING, Event.PREFILL): State.PREFILLING,
    (State.SUBMITTED, Event.TOKEN): State.DECODING,
    (State.PREFILLING, Event.TOKEN): State.DECODING,
    (State.DECODING, Event.TOKEN): State.DECODING,
    # On the next engine it starts again as SUBMITTED; it may have tokens already.
    **{(state, Event.LOSE): State.AWAITING_ENGINE for state in _IN_ENGINE},
    (State.AWAITING_ENGINE, Event.DISPATCH): State.SUBMITTED,
    # It died with an answer that lacked only its `Retired`.
    **{(state, Event.END): State.ENDING for state in (*_IN_ENGINE, State.AWAITING_ENGINE)},
    # No engine has it, so a cancel retires it without waiting for `Retired`.
    **{
        (state, event): State.RETIRED
        for state in (State.QUEUED, State.AWAITING_ENGINE, State.ENDING)
        for event in (Event.CANCEL, Event.RETIRE)
    },
    **{(state, Event.CANCEL): State.CANCELLING for state in _IN_ENGINE},
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
