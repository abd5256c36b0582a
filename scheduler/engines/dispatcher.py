"""Send requests to engines while there is room: first those to resume, then the queue's.

It has no task: the pool's loop calls it when a request may have room that had none."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence

from scheduler.engines.engine import Engine
from scheduler.engines.placement import least_seconds
from scheduler.intake.queue import IntakeQueue
from scheduler.requests.record import StreamRecord
from scheduler.requests.table import AWAITING, Requests

_MOST_SESSIONS = 65_536
"""Bound on remembered sessions: 8 MB by the hash of tenant and session, two to six times that by their names.
Two sessions of one hash share an entry, which only decides between engines that are equally good."""


class Dispatcher:
    """`engines` by name, which come and go; `moved` is called when a session's request goes to another engine
    than its last one."""

    def __init__(
        self,
        requests: Requests,
        queue: IntakeQueue,
        engines: Mapping[str, Engine],
        moved: Callable[[], None],
        most_deaths: int,
    ) -> None:
        """`most_deaths`: after this many in a row a suspect must be alone."""
        self._requests = requests
        self._queue = queue
        self._engines = engines
        self._awaiting = requests.at(AWAITING)
        self._moved = moved
        self._most_deaths = most_deaths
        self.held = False
        """Whether queued requests stay queued; those that engines have continue."""
        self._last: OrderedDict[int, str] = OrderedDict()
        """The engine of each session's last request, by the session's hash, the least recent first."""

    @property
    def credits(self) -> int:
        """Return how many requests the engines may hold together."""
        return sum(engine.credits for engine in self._engines.values())

    @property
    def has_room(self) -> bool:
        """Return whether a request that arrives now goes straight to an engine."""
        return bool(self._open())

    @property
    def room(self) -> int:
        """Return how many requests that arrive now go straight to an engine."""
        return sum(engine.room for engine in self._open())

    def pump(self, now: float) -> list[StreamRecord]:
        """Resume requests whose engine died (they are charged already), then submit queued ones while there
        is room. Return the latter. One that cannot be sent retires: what follows comes first."""
        self._resume_trusted()
        self._resume_suspects()
        submitted: list[StreamRecord] = []
        while not self._requests.retired and len(self._queue) and (engines := self._open()):
            record = self._queue.pop(now)
            self._choose(engines, record).take(record)
            submitted.append(record)
        return submitted

    def _open(self) -> list[Engine]:
        """Return the engines with room for a new request. An engine in quarantine has none: its suspect must
        be the only one if it dies again."""
        if self.held:
            return []
        return [engine for engine in self._engines.values() if engine.room and not engine.quarantined]

    def awaiting(self, *, suspect: bool) -> list[StreamRecord]:
        """Return those that await another engine, in the order of their acceptance, however often each was
        lost. Any engine may have those that did not crash theirs; a `suspect` needs one whose death would
        have no other culprit."""
        waiting = [self._awaiting[number] for number in sorted(self._awaiting)]
        return [record for record in waiting if record.suspect is suspect]

    def _resume_trusted(self) -> None:
        for record in self.awaiting(suspect=False):
            willing = [engine for engine in self._engines.values() if engine.room]
            if not willing:
                return
            healthy = [engine for engine in willing if not engine.quarantined]
            self._choose(healthy or willing, record).take(record)

    def _resume_suspects(self) -> None:
        """Resume suspects, one at a time on an engine. One that must be alone waits until the others on board
        are trusted; meanwhile, and until it is trusted itself, no new request joins it."""
        closed: set[str] = set()
        for record in self.awaiting(suspect=True):
            alone = self._must_be_alone(record)
            takers = [one for one in self._takers(record) if one.room]
            free = [one for one in takers if one.takes_suspect(alone=alone)]
            if alone:
                closed.update(one.name for one in (free or takers)[:1])
            if free:
                free[0].take(record)
        for engine in self._engines.values():
            suspect = engine.suspect
            engine.quarantined = engine.name in closed or (
                suspect is not None and self._must_be_alone(suspect)
            )

    def _must_be_alone(self, suspect: StreamRecord) -> bool:
        return suspect.deaths >= self._most_deaths

    def _takers(self, record: StreamRecord) -> list[Engine]:
        """Return the engines that may resume a suspect: that which died with it or, if it roams, any that has
        no suspect but the last of these, as a poisonous request must leave one that serves."""
        own = self._engines.get(record.engine or "")
        others = [one for one in self._engines.values() if one is not own and one.ready and one.credits]
        others.sort(key=lambda one: one.requests)
        if own is None or own.hopeless:
            # It has left the pool, or cannot be replaced: another one takes the risk.
            return [one for one in others if one.room][:1]
        healthy = [one for one in others if one.suspect is None]
        return [own, *healthy] if record.roams and len(healthy) > 1 else [own]

    def _choose(self, engines: Sequence[Engine], record: StreamRecord) -> Engine:
        request = record.request
        if request.session is None:
            return self._placed(engines, record, None)
        session = hash((request.tenant, request.session))
        last = self._last.get(session)
        chosen = self._placed(engines, record, last)
        if last is not None and last != chosen.name:
            self._moved()
        self._last[session] = chosen.name
        self._last.move_to_end(session)
        if len(self._last) > _MOST_SESSIONS:
            self._last.popitem(last=False)
        return chosen

    def _placed(self, engines: Sequence[Engine], record: StreamRecord, last: str | None) -> Engine:
        if len(engines) == 1:
            return engines[0]
        candidates = [engine.candidate(record) for engine in engines]
        place = least_seconds(candidates, self._queue.expected_tokens(record), last)
        return next(engine for engine in engines if engine.name == place.engine)
