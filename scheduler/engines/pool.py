"""Requests, the queue and the engines of one model, and what follows from each event.

Nobody is called when a request leaves or an engine comes: the table of requests notes it, and whatever has
happened ends with `reconcile`. What can be decided without it is pure and beside it: the order of the queue
(`../intake/fair_queue.py`), the engine for a request (`placement.py`), who is to blame for a death
(`poison.py`), and the legal moves (`../requests/lifecycle.py`, `condition.py`).
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import count

import structlog
import trio

from scheduler.config import SchedulerConfig
from scheduler.engines.adapters import PoolAdapters
from scheduler.engines.boundary import EngineProvision
from scheduler.engines.compatibility import refusal
from scheduler.engines.engine import Engine, Shared
from scheduler.engines.placement import least_seconds
from scheduler.engines.supervisor import EngineNeverReady
from scheduler.engines.together import all_as_one, first_ready
from scheduler.errors import (
    DeadlineExceeded,
    EngineLost,
    SchedulerError,
    Unavailable,
)
from scheduler.intake.admission import Admission
from scheduler.intake.expiry import Expiry
from scheduler.intake.queue import IntakeQueue
from scheduler.offload import Offload
from scheduler.processes.process import EngineLauncher
from scheduler.requests.answer_reading import AnswerReading
from scheduler.requests.lifecycle import Event, State
from scheduler.requests.record import StreamRecord
from scheduler.requests.table import AWAITING, ENDING, QUEUE, Requests
from scheduler.shared.messages import Ready
from scheduler.statistics import EngineStatistics
from scheduler.telemetry.containment import Containment
from scheduler.telemetry.observation import RequestSamples
from scheduler.telemetry.request_recorder import RequestRecorder

_log = structlog.get_logger("scheduler")
_MOST_SESSIONS = 65_536
"""Bound on remembered sessions: 8 MB by the hash of tenant and session, two to six times that by their names.
Two sessions of one hash share an entry, which only decides between engines that are equally good."""


class Pool:
    """`run` must be running. An engine's name is its number, which no later engine gets."""

    def __init__(
        self,
        config: SchedulerConfig,
        provision: EngineProvision,
        recorder: RequestRecorder,
        offload: Offload,
        changed: Callable[[], None],
        clock: Callable[[], float] = trio.current_time,
    ) -> None:
        """`changed` is called when requests or engines have come, moved or left."""
        self._config = config
        self._provision = provision
        self._recorder = recorder
        self._changed = changed
        self._clock = clock
        self.metrics = recorder.metrics
        self._telemetry = Containment(self.metrics.server)
        self.requests = Requests()
        self._awaiting = self.requests.at(AWAITING)
        self.queue = IntakeQueue(config.intake, self.requests)
        self.admission = Admission(self.queue)
        self.expiry = Expiry(config.intake, self.admission.retry_seconds)
        self._engines: dict[str, Engine] = {}
        self.adapters = PoolAdapters(config.engine.adapters)
        self.reading = AnswerReading(offload, self.requests, self.stepped)
        self._first_ready: Ready | None = None
        self._shared = Shared(
            config,
            provision,
            self.metrics,
            RequestSamples(self.metrics),
            clock,
            self._engines,
            self.requests,
            self.stepped,
            self.reconcile,
            self.adapters,
            self._refusal,
            self.reading,
            self._telemetry,
        )
        self.held = False
        """Whether queued requests stay queued; those that engines have continue."""
        self._last: OrderedDict[int, str] = OrderedDict()
        """The engine of each session's last request, by the session's hash, the least recent first."""
        self._numbers = count()
        self.loaded = config.load_at_start
        self.engines_join = config.engines_join
        self._nursery: trio.Nursery | None = None
        self._never_ready: EngineNeverReady | None = None
        self._has_served = False
        """Whether an engine that has left the pool was ever ready."""
        for _ in range(config.engines):
            self._new()

    def __len__(self) -> int:
        """Return how many requests the engines hold, or are to resume, or have just ended."""
        return len(self.requests) - len(self.requests.at(QUEUE))

    def __iter__(self) -> Iterator[Engine]:
        return iter(self._engines.values())

    def __getitem__(self, name: str) -> Engine:
        return self._engines[name]

    @property
    def names(self) -> list[str]:
        return list(self._engines)

    @property
    def records(self) -> Iterator[StreamRecord]:
        """Yield all requests in the pool."""
        return (record for record in self.requests if record.state is not State.QUEUED)

    @property
    def ready(self) -> Ready | None:
        """Return what an engine that is ready has reported; None if none is."""
        return first_ready(self)

    def statistics(self) -> EngineStatistics:
        """Return all engines as one."""
        return all_as_one(self)

    def service_token_seconds(self, output_weight: float) -> float | None:
        """Return the engine time of one token of service, averaged over all engines, or None before it is
        measured."""
        measured = [
            seconds
            for engine in self
            if (seconds := engine.speeds.service_token_seconds(output_weight)) is not None
        ]
        return sum(measured) / len(measured) if measured else None

    # --- what happens to requests

    def accept(self, records: Sequence[StreamRecord], leaving: Sequence[StreamRecord] = ()) -> None:
        """Queue the choices of one client's request. Admission let them in, and `leaving` leave the queue for
        them."""
        now = self._clock()
        if leaving:
            why = "its tenant has most of those that wait, and others came"
            self.end(leaving, self.admission.overload(why, now))
        for record in records:
            self.queue.push(record, now)
            self.expiry.watch(record)
        self.reconcile()

    def cancel(self, record: StreamRecord) -> None:
        """End a request that no reader waits for: at once, or, if an engine has it, when that has retired
        it."""
        self.requests.move(record, Event.CANCEL)
        if self.requests.changed:
            self.reconcile()

    def expire(self, record: StreamRecord, error: DeadlineExceeded) -> None:
        """End a request whose deadline has passed, with `error`. One that has its final event keeps it."""
        self.end((record,), error)

    def fail_queued(self, error: SchedulerError) -> None:
        """Fail all requests that no engine has got yet."""
        self.end(self.requests.at(QUEUE).values(), error)

    def end(self, records: Iterable[StreamRecord], error: SchedulerError) -> None:
        """Fail these with `error`, and cancel those that engines have."""
        self._fail(records, error)
        self.reconcile()

    def end_all(self, error: SchedulerError) -> None:
        """Do the same to every request."""
        self.end(self.requests, error)

    def _fail(self, records: Iterable[StreamRecord], error: SchedulerError) -> None:
        for record in list(records):
            if record.outcome is None:
                record.fail(error)
                self.requests.move(record, Event.CANCEL)

    def stepped(self, advanced: Sequence[StreamRecord] = ()) -> None:
        """A step has advanced these requests, or more of a step is read: charge them, and reconcile where it
        has led to more, as a step rarely does."""
        now = self._clock()
        for record in advanced:
            if record.started_at is None and record.state in (State.PREFILLING, State.DECODING):
                record.started_at = now
                self.expiry.watch(record)
            self.queue.observe(record, now)
        # A suspect, or the queue, may be waiting for another request to become trusted.
        if self.requests.changed or self._awaiting or any(one.quarantined for one in self):
            self.reconcile()

    # --- what follows

    def reconcile(self, engine: Engine | None = None) -> None:
        """Do what an event has led to, until nothing is left. Everything that happens to requests and engines
        ends with this call; nothing here makes another one. `engine`: its process has become ready, has
        ended, or its end is explained, or no further one is started."""
        now = self._clock()
        if engine is not None:
            self._follow(engine)
        for one in list(self):
            self._stop_if_drained(one)
        self._follow_blocks(now)
        while True:
            self._take_leave(now)
            for record in self._dispatch(now):
                self.expiry.watch(record)
            if not self.requests.retired:
                break
        self.admission.rate.follow(now, full=not self.has_room)
        self.requests.changed = False
        self._changed()

    def _follow(self, engine: Engine) -> None:
        """Do what follows for the others when an engine's process comes or goes."""
        if engine.ready:
            # The time without an engine is no gap between two departures.
            self.admission.rate.pause()
            return
        # Where there is none, requests wait for one that joins.
        if (serving := self._serving()) and all(one.given_up for one in serving):
            # One that waits is worth as much as one that ran: both outlive as many failed starts.
            reason = f"the engine does not start: {engine.cause}"
            self._fail(self.requests.at(QUEUE).values(), Unavailable(reason, retry_after_seconds=10.0))
            reason = "the engine was lost, and no other could be started to resume the request"
            error = EngineLost(f"{reason}: {engine.cause}", retry_after_seconds=10.0)
            self._fail(self._awaiting.values(), error)

    def _follow_blocks(self, now: float) -> None:
        """Close admission while no engine is available."""
        found = [one.blocked(now) for one in self._serving()]
        blocks = [block for block in found if block is not None]
        if not found or len(blocks) < len(found):
            self.admission.unblock()
        else:
            until, reason = min(blocks)
            self.admission.block(reason, until)

    def _serving(self) -> list[Engine]:
        return [engine for engine in self if not engine.draining]

    def _take_leave(self, now: float) -> None:
        """Do what follows from cancels and ends."""
        requests = self.requests
        while requests.cancelling:
            record = requests.cancelling.popleft()
            # The step that made it superfluous may have ended it, too.
            if record.state is State.CANCELLING and (engine := self._of(record)) is not None:
                engine.multiplexer.cancel(record)
        while requests.retired:
            record, place = requests.retired.popleft()
            if place == ENDING:
                record.forget_unread()
            if place == QUEUE:
                self.queue.left(record, now)
            elif place != AWAITING and (engine := self._of(record)) is not None:
                engine.left(record)
            assert record.outcome is not None, "a request left without an outcome"
            self._recorder.ended(record, now)
            self.expiry.forget(record)
            if record.dispatched_at is not None:
                self.queue.charge_actual(record, now)
                self.admission.rate.departed(now)

    def _of(self, record: StreamRecord) -> Engine | None:
        return None if record.engine is None else self._engines.get(record.engine)

    # --- which engine gets which request

    @property
    def credits(self) -> int:
        """Return how many requests the engines may hold together."""
        return sum(engine.credits for engine in self)

    @property
    def has_room(self) -> bool:
        """Return whether a request that arrives now goes straight to an engine."""
        return bool(self._open())

    @property
    def room(self) -> int:
        """Return how many requests that arrive now go straight to an engine."""
        return sum(engine.room for engine in self._open())

    def _open(self) -> list[Engine]:
        """Return the engines with room for a new request. An engine in quarantine has none: its suspect must
        be the only one if it dies again."""
        return [] if self.held else [engine for engine in self if engine.room and not engine.quarantined]

    def _dispatch(self, now: float) -> list[StreamRecord]:
        """Resume requests whose engine died (they are charged already), then submit queued ones while there
        is room. Return the latter. One that cannot be sent retires: what follows comes first."""
        self._resume_trusted()
        self._resume_suspects()
        submitted: list[StreamRecord] = []
        while not self.requests.retired and len(self.queue) and (engines := self._open()):
            record = self.queue.pop(now)
            self._choose(engines, record).take(record)
            submitted.append(record)
        return submitted

    def awaiting(self, *, suspect: bool) -> list[StreamRecord]:
        """Return those that await another engine, in the order of their acceptance, however often each was
        lost. Any engine may have those that did not crash theirs; a `suspect` needs one whose death would
        have no other culprit."""
        waiting = [self._awaiting[number] for number in sorted(self._awaiting)]
        return [record for record in waiting if record.suspect is suspect]

    def _resume_trusted(self) -> None:
        for record in self.awaiting(suspect=False):
            willing = [engine for engine in self if engine.room]
            if not willing:
                return
            healthy = [engine for engine in willing if not engine.quarantined]
            self._choose(healthy or willing, record).take(record)

    def _resume_suspects(self) -> None:
        """Resume suspects, one at a time on an engine. One that was a suspect at too many deaths must be the
        only one to blame for the next: it waits until the others on board are trusted, and meanwhile, and
        until it is trusted itself, no new request joins it (`poison.py`)."""
        closed: set[str] = set()
        for record in self.awaiting(suspect=True):
            alone = self._must_be_alone(record)
            takers = [one for one in self._takers(record) if one.room]
            free = [one for one in takers if one.takes_suspect(alone=alone)]
            if alone:
                closed.update(one.name for one in (free or takers)[:1])
            if free:
                free[0].take(record)
        for engine in self:
            suspect = engine.suspect
            engine.quarantined = engine.name in closed or (
                suspect is not None and self._must_be_alone(suspect)
            )

    def _must_be_alone(self, suspect: StreamRecord) -> bool:
        return suspect.deaths >= self._config.recovery.max_request_deaths

    def _takers(self, record: StreamRecord) -> list[Engine]:
        """Return the engines that may resume a suspect: that which died with it or, if it roams, any that has
        no suspect but the last of these, as a poisonous request must leave one that serves."""
        own = self._engines.get(record.engine or "")
        others = [one for one in self if one is not own and one.ready and one.credits]
        others.sort(key=lambda one: one.requests)
        if own is None or own.given_up:
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
            self._telemetry.sample(self.metrics.session_moves.inc)
        self._last[session] = chosen.name
        self._last.move_to_end(session)
        if len(self._last) > _MOST_SESSIONS:
            self._last.popitem(last=False)
        return chosen

    def _placed(self, engines: Sequence[Engine], record: StreamRecord, last: str | None) -> Engine:
        if len(engines) == 1:
            return engines[0]
        candidates = [engine.candidate(record) for engine in engines]
        best = least_seconds(candidates, self.queue.expected_tokens(record), last)
        return self._engines[best.engine]

    # --- its engines

    async def run(self) -> None:
        """Never returns by itself; cancel it to end the engines. Raise EngineNeverReady if the first engines
        cannot be started, and must."""
        async with trio.open_nursery() as self._nursery:
            self._nursery.start_soon(self.reading.run)
            self._nursery.start_soon(self.expiry.run, self.expire)
            if self.loaded:
                self._start_all()
        if self._never_ready is not None:
            raise self._never_ready

    def load(self) -> None:
        """Start its engines. `unload` must have ended them."""
        assert not self.running, "its engines run"
        self.loaded = True
        self._start_all()

    def _start_all(self) -> None:
        self._telemetry.sample(self.metrics.loads.inc)
        for engine in self:
            self._start(engine)
        self.reconcile()

    def unload(self) -> None:
        """End its engines' processes: they are gone when `running` is false. Requests wait in the queue until
        `load`; engines hold none."""
        assert not len(self), "its engines have requests"
        self.loaded = False
        for engine in self:
            if self._nursery is None:
                engine.supervisor.abort_start()
            else:
                engine.stop()

    @property
    def running(self) -> bool:
        """Return whether a process of its engines may be left."""
        return any(engine.running for engine in self)

    @property
    def failure(self) -> str | None:
        """Return why none of its engines can be started, or None if one may be, or if `run` ends with that
        reason."""
        if self._ends_with_first_engines or not all(engine.failed for engine in self):
            return None
        return next((engine.supervisor.failure for engine in self), None)

    @property
    def _ends_with_first_engines(self) -> bool:
        return self._config.must_start and not self._was_ready

    @property
    def _was_ready(self) -> bool:
        """Return whether any of its engines ever was."""
        return self._has_served or any(one.supervisor.was_ready for one in self)

    def forgive(self) -> None:
        """Count on engines again that could not be started."""
        for engine in self:
            engine.forgive()
        self.reconcile()

    def _start(self, engine: Engine) -> None:
        if self._nursery is not None:
            if not engine.running:
                engine.begin()
            self._nursery.start_soon(self._run, engine)

    async def _run(self, engine: Engine) -> None:
        given_up: Engine | None = None
        try:
            await engine.run()
        except EngineNeverReady as error:
            self._cannot_start(engine, error)
            # A first load that fails is the service's end, or the fleet's to report.
            given_up = engine if self._was_ready else None
        else:
            if self.loaded or engine.draining:
                self._forget(engine)
        finally:
            engine.share.gone()
        self.reconcile(given_up)

    def _cannot_start(self, engine: Engine, error: EngineNeverReady) -> None:
        assert self._nursery is not None
        if self._ends_with_first_engines:
            self._never_ready = error
            self._nursery.cancel_scope.cancel()
            return
        # An engine was ready before, so that the installation works; or machines or other models must go on.
        _log.error("engine_failed", engine=engine.name, reason=str(error))

    def _refusal(self, ready: Ready) -> str:
        """Return why an engine that is ready cannot serve beside the pool's first one, or an empty string if
        it can. All must match that one's model, vocabulary and dtypes for as long as the pool lives: every
        answer so far, and every prompt that waits, was made for that model."""
        self._first_ready = self._first_ready or ready
        return refusal(self._first_ready, ready)

    def add(self, launcher: EngineLauncher) -> Engine:
        """Start a further engine."""
        engine = self._new(launcher)
        _log.info("engine_added", engine=engine.name)
        if self.loaded:
            self._start(engine)
        self.reconcile()
        return engine

    def retry(self, name: str) -> None:
        """Try again to start an engine that could not be."""
        engine = self[name]
        if engine.failed and not engine.running and self.loaded:
            self._start(engine)
            self.reconcile()

    def remove(self, name: str) -> None:
        """Give an engine no new requests, and stop it at the end of those that it has: its machine is gone.
        After the last one requests wait until another one comes."""
        engine = self[name]
        if not engine.draining:
            engine.draining = True
            _log.info("engine_draining", engine=engine.name, requests=engine.requests)
            self.reconcile()

    def _new(self, launcher: EngineLauncher | None = None) -> Engine:
        number = next(self._numbers)
        name = str(number)
        engine = self._engines[name] = Engine(
            name,
            launcher or self._provision.launcher_of(number),
            self._provision.share_of(name),
            self._shared,
        )
        if self.loaded:
            engine.begin()
        return engine

    def _stop_if_drained(self, engine: Engine) -> None:
        if not engine.draining or engine.requests:
            return
        if engine.running and self._nursery is not None:
            engine.stop()
        else:
            self._forget(engine)

    def _forget(self, engine: Engine) -> None:
        """Remove an engine that has been stopped."""
        if self._engines.pop(engine.name, None) is not None:
            self._has_served = self._has_served or engine.supervisor.was_ready
            # It may have had a part without a process: its model waits for memory.
            engine.share.gone()
            self.requests.forget(engine.name)
            self.metrics.forget_engine(engine.name)
            _log.info("engine_removed", engine=engine.name)
