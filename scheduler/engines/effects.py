"""What follows from an event, for requests and engines: carried out until nothing is left.

Nobody is called when a request leaves or an engine comes: the table of requests notes it, and whatever has
happened ends with `carry_out`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence

from scheduler.engines.dispatcher import Dispatcher
from scheduler.engines.engine import Engine
from scheduler.errors import DeadlineExceeded, EngineLost, SchedulerError, Unavailable
from scheduler.intake.admission import Admission
from scheduler.intake.expiry import Expiry
from scheduler.intake.queue import IntakeQueue
from scheduler.requests.lifecycle import Event, State
from scheduler.requests.record import StreamRecord
from scheduler.requests.table import AWAITING, ENDING, QUEUE, Requests
from scheduler.telemetry.request_recorder import RequestRecorder


class Effects:
    """`engines` by name, which come and go; `stop_if_drained` ends one that drains and has no request;
    `changed` is called when requests or engines have come, moved or left."""

    def __init__(
        self,
        requests: Requests,
        engines: Mapping[str, Engine],
        queue: IntakeQueue,
        admission: Admission,
        expiry: Expiry,
        recorder: RequestRecorder,
        dispatcher: Dispatcher,
        stop_if_drained: Callable[[Engine], None],
        changed: Callable[[], None],
        clock: Callable[[], float],
    ) -> None:
        self._requests = requests
        self._awaiting = requests.at(AWAITING)
        self._engines = engines
        self._queue = queue
        self._admission = admission
        self._expiry = expiry
        self._recorder = recorder
        self._dispatcher = dispatcher
        self._stop_if_drained = stop_if_drained
        self._changed = changed
        self._clock = clock

    def cancel(self, record: StreamRecord) -> None:
        """End a request that no reader waits for: at once, or, if an engine has it, when that has retired
        it."""
        self._requests.move(record, Event.CANCEL)
        if self._requests.changed:
            self.carry_out()

    def expire(self, record: StreamRecord, error: DeadlineExceeded) -> None:
        """End a request whose deadline has passed, with `error`. One that has its final event keeps it."""
        self._fail((record,), error)
        self.carry_out()

    def fail_queued(self, error: SchedulerError) -> None:
        """Fail all requests that no engine has got yet."""
        self._fail(self._requests.at(QUEUE).values(), error)
        self.carry_out()

    def end(self, records: Iterable[StreamRecord], error: SchedulerError) -> None:
        """Fail these with `error`, and cancel those that engines have."""
        self._fail(records, error)
        self.carry_out()

    def end_all(self, error: SchedulerError) -> None:
        """Do the same to every request."""
        self.end(self._requests, error)

    def _fail(self, records: Iterable[StreamRecord], error: SchedulerError) -> None:
        for record in list(records):
            if record.outcome is None:
                record.fail(error)
                self._requests.move(record, Event.CANCEL)

    def _of(self, record: StreamRecord) -> Engine | None:
        return None if record.engine is None else self._engines.get(record.engine)

    def stepped(self, advanced: Sequence[StreamRecord] = ()) -> None:
        """A step has advanced these requests, or more of a step is read: charge them, and carry out what else
        it has led to, as a step rarely does."""
        now = self._clock()
        for record in advanced:
            if record.started_at is None and record.state in (State.PREFILLING, State.DECODING):
                record.started_at = now
                self._expiry.watch(record)
            self._queue.observe(record, now)
        # A suspect, or the queue, may be waiting for another request to become trusted.
        if self._requests.changed or self._awaiting or any(one.quarantined for one in self._engines.values()):
            self.carry_out()

    def carry_out(self, engine: Engine | None = None) -> None:
        """Carry out what an event has led to, until nothing is left. Everything that happens to requests and
        engines ends with this call; nothing here makes another one. `engine`: its process has become ready,
        has ended, or its end is explained, or no further one is started."""
        now = self._clock()
        if engine is not None:
            self._follow(engine)
        for one in list(self._engines.values()):
            self._stop_if_drained(one)
        self._follow_blocks(now)
        while True:
            self._take_leave(now)
            for record in self._dispatcher.pump(now):
                if record.listening:
                    self._expiry.watch(record)
            if not self._requests.retired:
                break
        self._admission.rate.follow(now, full=not self._dispatcher.has_room)
        self._requests.changed = False
        self._changed()

    def _take_leave(self, now: float) -> None:
        """Do what follows from cancels and ends."""
        requests = self._requests
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
                self._queue.left(record, now)
            elif place != AWAITING and (engine := self._of(record)) is not None:
                engine.left(record)
            assert record.outcome is not None, "a request left without an outcome"
            self._recorder.ended(record, now)
            self._expiry.forget(record)
            if record.dispatched_at is not None:
                self._queue.charge_actual(record, now)
                self._admission.rate.departed(now)

    def _follow(self, engine: Engine) -> None:
        """Do what follows for the others when an engine's process comes or goes."""
        if engine.ready:
            # The time without an engine is no gap between two departures.
            self._admission.rate.pause()
            return
        # Where there is none, requests wait for one that joins.
        if (serving := self._serving()) and all(one.hopeless for one in serving):
            # One that waits is worth as much as one that ran: both outlive as many failed starts.
            reason = f"the engine does not start: {engine.cause}"
            self._fail(self._requests.at(QUEUE).values(), Unavailable(reason, retry_after_seconds=10.0))
            reason = "the engine was lost, and no other could be started to resume the request"
            error = EngineLost(f"{reason}: {engine.cause}", retry_after_seconds=10.0)
            self._fail(self._awaiting.values(), error)
        if engine.draining:
            # Its process is not replaced: the other engines resume its requests.
            engine.stop()

    def _serving(self) -> list[Engine]:
        return [engine for engine in self._engines.values() if not engine.draining]

    def _follow_blocks(self, now: float) -> None:
        """Close admission while no engine is available."""
        found = [one.blocked(now) for one in self._serving()]
        blocks = [block for block in found if block is not None]
        if not found or len(blocks) < len(found):
            self._admission.unblock()
        else:
            until, reason = min(blocks)
            self._admission.block(reason, until)
