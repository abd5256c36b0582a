"""The states of one engine over all its lives, and the legal moves between them.

`TRANSITIONS` alone decides whether a move is legal. Whether an engine drains, or is in quarantine, are facts
beside its state.
"""

from __future__ import annotations

from enum import Enum, auto

from scheduler.statistics import EngineCondition


class State(Enum):
    ABSENT = auto()
    """It has no process, and nobody wants one: its model is not loaded."""
    STARTING = auto()
    READY = auto()
    BACKING_OFF = auto()
    """Its process has ended, or could not be started; the next one follows after a pause."""
    FAILED = auto()
    """It could not be started, and no further attempt is made by itself."""
    STOPPING = auto()
    """Its process is being ended on purpose."""


class Event(Enum):
    BEGIN = auto()
    READY = auto()
    END = auto()
    """The process's link has ended, or no process could be started."""
    RETRY = auto()
    GIVE_UP = auto()
    FORGIVE = auto()
    """It may be begun again."""
    STOP = auto()
    GONE = auto()
    """Nobody keeps it alive any more, and no process is left."""


_ALIVE = (State.STARTING, State.READY, State.BACKING_OFF)
TRANSITIONS: dict[tuple[State, Event], State] = {
    (State.ABSENT, Event.BEGIN): State.STARTING,
    (State.FAILED, Event.BEGIN): State.STARTING,
    (State.FAILED, Event.FORGIVE): State.ABSENT,
    (State.STARTING, Event.READY): State.READY,
    (State.STARTING, Event.END): State.BACKING_OFF,
    (State.READY, Event.END): State.BACKING_OFF,
    (State.BACKING_OFF, Event.RETRY): State.STARTING,
    (State.BACKING_OFF, Event.GIVE_UP): State.FAILED,
    **{(state, Event.STOP): State.STOPPING for state in (*_ALIVE, State.STOPPING)},
    # What was on its way when it was stopped.
    **{
        (State.STOPPING, event): State.STOPPING
        for event in (Event.READY, Event.END, Event.RETRY, Event.GIVE_UP)
    },
    **{(state, Event.GONE): State.ABSENT for state in (*_ALIVE, State.STOPPING)},
    (State.FAILED, Event.GONE): State.FAILED,
}


def move(state: State, event: Event) -> State:
    """Return the state after `event`. Raise RuntimeError for an illegal move."""
    try:
        return TRANSITIONS[state, event]
    except KeyError:
        raise RuntimeError(f"{event.name} is not allowed in state {state.name} of an engine") from None


def condition_of(state: State, *, died: bool) -> EngineCondition:
    """Return how operators see it. `died`: a process of it has ended since it was begun, or before that by
    itself."""
    match state:
        case State.ABSENT | State.STOPPING:
            return EngineCondition.UNLOADED
        case State.STARTING:
            return EngineCondition.RESTARTING if died else EngineCondition.STARTING
        case State.READY:
            return EngineCondition.READY
        case State.BACKING_OFF:
            return EngineCondition.RESTARTING
        case State.FAILED:
            return EngineCondition.FAILED
