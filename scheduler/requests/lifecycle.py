"""A request's states, and the legal moves between them.

`TRANSITIONS` alone decides whether a move is legal. An illegal move raises and leaves the state as it was. An
id leaves the last of the server's tables when its state becomes RETIRED.
"""

from __future__ import annotations

from enum import Enum, StrEnum, auto

from scheduler.errors import LinkError


class State(StrEnum):
    """The value names the phase in a time line. From ENDING on, a time line begins no new phase: the last one
    continues until the request is over."""

    QUEUED = "queue"
    """Accepted: tokenized, and in the intake queue."""
    SUBMITTED = "submitted"
    """Sent to an engine that has not reported on it yet: the start of what comes next."""
    WAITING = "waiting"
    """The request is in an engine, without a slot."""
    PREFILLING = "prefill"
    DECODING = "decode"
    PREEMPTED = "preempted"
    """It lost its slot, and waits for another one."""
    AWAITING_ENGINE = "awaiting_engine"
    """Its engine died; the next one resumes it."""
    ENDING = "ending"
    """No engine has it any more: the answer is complete, and the reader takes the rest of it."""
    CANCELLING = "cancelling"
    """`Cancel` was sent; output that arrives before `Retired` is dropped."""
    RETIRED = "retired"


class Event(Enum):
    DISPATCH = auto()
    WAIT = auto()
    """The engine reports why it has no slot."""
    ADMIT = auto()
    """It waited for a slot, and has got one."""
    PREEMPT = auto()
    PREFILL = auto()
    TOKEN = auto()
    CANCEL = auto()
    """The client left, or a deadline passed: the record's outcome tells them apart."""
    LOSE = auto()
    """Its engine died."""
    END = auto()
    """Its engine has ended it."""
    RETIRE = auto()


class IllegalMove(LinkError):
    """An event that the state does not allow. If the engine sent it, the engine counts as broken."""


IN_ENGINE = (State.SUBMITTED, State.WAITING, State.PREFILLING, State.DECODING, State.PREEMPTED)
"""States of requests with a reader that an engine has."""

TRANSITIONS: dict[tuple[State, Event], State] = {
    (State.QUEUED, Event.DISPATCH): State.SUBMITTED,
    (State.SUBMITTED, Event.WAIT): State.WAITING,
    (State.WAITING, Event.WAIT): State.WAITING,
    # It waits for free memory until it has a slot again, whatever else is missing.
    (State.PREEMPTED, Event.WAIT): State.PREEMPTED,
    # The engine sends the last change of an iteration, so what was before it may be unknown.
    **{(state, Event.ADMIT): State.PREFILLING for state in IN_ENGINE},
    **{(state, Event.PREEMPT): State.PREEMPTED for state in IN_ENGINE},
    **{(state, Event.PREFILL): State.PREFILLING for state in IN_ENGINE if state is not State.DECODING},
    **{(state, Event.TOKEN): State.DECODING for state in IN_ENGINE},
    # On the next engine it starts again as SUBMITTED; it may have tokens already.
    **{(state, Event.LOSE): State.AWAITING_ENGINE for state in IN_ENGINE},
    (State.AWAITING_ENGINE, Event.DISPATCH): State.SUBMITTED,
    # The engine has sent `Retired`, or died with an answer that lacked nothing else.
    **{(state, Event.END): State.ENDING for state in (*IN_ENGINE, State.AWAITING_ENGINE)},
    # No engine has it, so a cancel retires it without waiting for `Retired`.
    **{
        (state, event): State.RETIRED
        for state in (State.QUEUED, State.AWAITING_ENGINE, State.ENDING)
        for event in (Event.CANCEL, Event.RETIRE)
    },
    **{(state, Event.CANCEL): State.CANCELLING for state in IN_ENGINE},
    **{(state, Event.RETIRE): State.RETIRED for state in (*IN_ENGINE, State.CANCELLING)},
    **{
        (State.CANCELLING, event): State.CANCELLING
        for event in (Event.WAIT, Event.ADMIT, Event.PREEMPT, Event.PREFILL, Event.TOKEN, Event.CANCEL)
    },
    (State.RETIRED, Event.CANCEL): State.RETIRED,
}


def move(state: State, event: Event) -> State:
    """Return the state after `event`. Raise IllegalMove."""
    try:
        return TRANSITIONS[state, event]
    except KeyError:
        raise IllegalMove(f"{event.name} is not allowed in state {state.name}") from None
