"""All accepted requests by id. A record's state says where it is, and `move` is the only way to change it.

A place that is noted beside the state would have to follow it at every way in which a request can end; one
that is forgotten is a slot or a charge that nobody gives back. So the place is computed from the state, and
the index by place is written where the state is.

Pure: times are arguments. Nobody is called when a request leaves: what must follow is noted here, and the
pool does it (`../engines/pool.py`, `reconcile`).
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Iterator, Mapping
from typing import assert_never

from scheduler.requests.lifecycle import Event, State, move
from scheduler.requests.record import StreamRecord

QUEUE, AWAITING, ENDING, NOWHERE = "queue", "awaiting", "ending", ""
"""Where requests are that no engine has. Engines are places by their names, which are numbers."""


def place_of(state: State, engine: str | None) -> str:
    """Return where a request is. `engine`: the name of the one that it went to last."""
    match state:
        case State.QUEUED:
            return QUEUE
        case State.AWAITING_ENGINE:
            return AWAITING
        case State.ENDING:
            return ENDING
        case State.RETIRED:
            return NOWHERE
        case (
            State.SUBMITTED
            | State.WAITING
            | State.PREFILLING
            | State.DECODING
            | State.PREEMPTED
            | State.CANCELLING
        ):
            assert engine is not None, "it was sent to no engine"
            return engine
        case _:
            assert_never(state)


class Requests:
    """Every request from acceptance to retirement; iterates in the order of acceptance."""

    def __init__(self) -> None:
        self._records: dict[int, StreamRecord] = {}
        self._at: defaultdict[str, dict[int, StreamRecord]] = defaultdict(dict)
        self.changed = False
        """Whether a request has come, left or changed its place since the loop was last through."""
        self.cancelling: deque[StreamRecord] = deque()
        """Those that nobody waits for, which their engines must hear."""
        self.retired: deque[tuple[StreamRecord, str]] = deque()
        """Those that have left for good, and from where."""

    def __len__(self) -> int:
        return len(self._records)

    def __iter__(self) -> Iterator[StreamRecord]:
        return iter(self._records.values())

    def at(self, place: str) -> Mapping[int, StreamRecord]:
        """Return the requests at `place` by id, in the order in which they came there, now and later on."""
        return self._at[place]

    def forget(self, engine: str) -> None:
        """Take note that no request will be at this engine any more."""
        self._at.pop(engine, None)

    def accept(self, record: StreamRecord) -> None:
        self._records[record.request_id] = self._at[QUEUE][record.request_id] = record
        self.changed = True

    def dispatch(self, record: StreamRecord, engine: str, now: float) -> None:
        """Take note that the request goes to `engine`, its first or the next one."""
        record.engine = engine
        self.move(record, Event.DISPATCH)
        record.time_line.enter(record.state, now, engine=engine)

    def move(self, record: StreamRecord, event: Event, now: float | None = None, waits_for: str = "") -> None:
        """Move to the next state. `now` is the time of the move; None leaves the time line as it is.
        `waits_for` is the reason that comes with WAIT. Raise IllegalMove, which changes nothing."""
        before = record.state
        after = record.state = move(before, event)
        if after is not before:
            self._follow(record, place_of(before, record.engine), place_of(after, record.engine))
        elif not waits_for:
            return
        if now is not None and record.listening:
            record.time_line.enter(after, now, waits_for if after is State.WAITING else "")

    def _follow(self, record: StreamRecord, here: str, there: str) -> None:
        if here != there:
            # It may not be here: its reader may leave before it is accepted.
            self._at[here].pop(record.request_id, None)
            if there == NOWHERE:
                self._records.pop(record.request_id, None)
                self.retired.append((record, here))
            else:
                self._at[there][record.request_id] = record
        elif record.state is State.CANCELLING:
            self.cancelling.append(record)
        else:
            return
        self.changed = True
