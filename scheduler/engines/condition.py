"""The states of one engine over all its lives, and the legal moves between them.

`TRANSITIONS` alone decides whether a move is legal. Whether an engine drains, or is in quarantine, are facts
beside its state.
"""

from __future__ import annotations

from enum import Enum, auto

from scheduler.statistics import EngineCondition


class EngineState(Enum):
    ABSENT = auto()
    """It has no process, and needs none: its model is not loaded."""
    STARTING = auto()
    READY = auto()
    BACKING_OFF = auto()
    """Its process has ended, or could not be started; the next one follows after a pause."""
    FAILED = auto()
    """It could not be started, and no further attempt is made by itself."""
    STOPPING = auto()
    """Its process is being ended on purpose."""


class EngineEvent(Enum):
    BEGIN = auto()
    READY = auto()
    END = auto()
    """The process's link has ended, or no process could be started."""
    RETRY = auto()
    GIVE_UP = auto()
    FORGIVE = auto()
    """An engine that failed may be started again."""
    STOP = auto()
    GONE = auto()
    """Its supervisor no longer runs, and no process is left."""


_ALIVE = (EngineState.STARTING, EngineState.READY, EngineState.BACKING_OFF)
TRANSITIONS: dict[tuple[EngineState, EngineEvent], EngineState] = {
    (EngineState.ABSENT, EngineEvent.BEGIN): EngineState.STARTING,
    (EngineState.FAILED, EngineEvent.BEGIN): EngineState.STARTING,
    (EngineState.FAILED, EngineEvent.FORGIVE): EngineState.ABSENT,
    (EngineState.STARTING, EngineEvent.READY): EngineState.READY,
    (EngineState.STARTING, EngineEvent.END): EngineState.BACKING_OFF,
    (EngineState.READY, EngineEvent.END): EngineState.BACKING_OFF,
    (EngineState.BACKING_OFF, EngineEvent.RETRY): EngineState.STARTING,
    (EngineState.BACKING_OFF, EngineEvent.GIVE_UP): EngineState.FAILED,
    **{(state, EngineEvent.STOP): EngineState.STOPPING for state in (*_ALIVE, EngineState.STOPPING)},
    # Events that were on their way when it was stopped.
    **{
        (EngineState.STOPPING, event): EngineState.STOPPING
        for event in (EngineEvent.READY, EngineEvent.END, EngineEvent.RETRY, EngineEvent.GIVE_UP)
    },
    **{(state, EngineEvent.GONE): EngineState.ABSENT for state in (*_ALIVE, EngineState.STOPPING)},
    (EngineState.FAILED, EngineEvent.GONE): EngineState.FAILED,
}


def move(state: EngineState, event: EngineEvent) -> EngineState:
    """Return the state after `event`. Raise RuntimeError for an illegal move."""
    try:
        return TRANSITIONS[state, event]
    except KeyError:
        raise RuntimeError(f"{event.name} is not allowed in state {state.name} of an engine") from None


def condition_of(state: EngineState, *, died: bool, quarantined: bool = False) -> EngineCondition:
    """Return the condition that operators see. `died`: whether one of its processes has ended since it was
    begun, or ended by itself before that. `quarantined`: whether new requests wait for its suspect."""
    match state:
        case EngineState.ABSENT | EngineState.STOPPING:
            return EngineCondition.UNLOADED
        case EngineState.STARTING:
            return EngineCondition.RESTARTING if died else EngineCondition.STARTING
        case EngineState.READY:
            return EngineCondition.QUARANTINE if quarantined else EngineCondition.READY
        case EngineState.BACKING_OFF:
            return EngineCondition.RESTARTING
        case EngineState.FAILED:
            return EngineCondition.FAILED
