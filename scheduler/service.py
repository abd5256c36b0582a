"""The scheduler as its users see it: `async with scheduler.stream(request) as stream`.

It joins the stages and has no rule of its own: admission and order are `intake`'s, the engine's life is
the supervisor's, delivery is the multiplexer's.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import ExitStack, asynccontextmanager
from dataclasses import replace
from itertools import count

import structlog
import trio

from scheduler.config import SchedulerConfig
from scheduler.errors import DeadlineExceeded, Draining, EngineLost, SchedulerError, Unavailable
from scheduler.intake.admission import Admission
from scheduler.intake.dispatcher import Dispatcher
from scheduler.intake.expiry import Expiry
from scheduler.intake.queue import IntakeQueue
from scheduler.lifecycle import Event, State
from scheduler.link.death import Death, DeathCause
from scheduler.link.inquiries import Inquiries
from scheduler.link.messages import Inspect, Inspection, Ready, StepOutput, ToEngine
from scheduler.link.process import EngineLauncher
from scheduler.link.supervisor import EngineNeverReady, EngineStatistics, Supervisor
from scheduler.prompt.offload import Offload, PreparationOffLoop
from scheduler.prompt.preparation import Preparation
from scheduler.recovery import Storm, count_death, lowered_share, poison
from scheduler.request import GenerationRequest, Prompt
from scheduler.stall_watch import StallWatch
from scheduler.statistics import SchedulerReport, SchedulerStatistics
from scheduler.streams.mailbox import Doorbell
from scheduler.streams.multiplexer import Multiplexer
from scheduler.streams.record import StreamRecord, deadline_of, records_of
from scheduler.streams.request_stream import RequestStream as RequestStream
from scheduler.telemetry import observation
from scheduler.telemetry.chronicle import Chronicle, Tracer
from scheduler.telemetry.containment import Containment
from scheduler.telemetry.engine_totals import EngineTotals
from scheduler.telemetry.metrics import Metrics

_log = structlog.get_logger("scheduler")


class Scheduler:
    """Owns every request from acceptance to its final event, while `run` runs."""

    def __init__(
        self,
        config: SchedulerConfig,
        preparation: Preparation,
        launcher: EngineLauncher,
        offload: Offload,
        on_loading: Callable[[str], None] = lambda stage: None,
        metrics: Metrics | None = None,
        model_name: str = "",
        tracer: Tracer | None = None,
    ) -> None:
        self.metrics = metrics or Metrics()
        self._chronicle = Chronicle(self.metrics, tracer)
        self.recent = self._chronicle.recent
        self._model_name = model_name
        self._asked_budget = False
        self.metrics.slots.set(config.engine.max_slots)
        self._preparation = preparation
        self.offload = offload
        self._off_loop = PreparationOffLoop(preparation, offload)
        self._on_loading = on_loading
        self._ids = count(1)
        self._send_to_engine: Callable[[ToEngine], None] | None = None
        self._queue = IntakeQueue(config.intake)
        self._admission = Admission(self._queue)
        self._multiplexer = Multiplexer(self._send, self._settle, self.metrics, trio.current_time)
        credits = config.engine.max_slots + config.intake.lookahead
        self._dispatcher = Dispatcher(self._queue, self._multiplexer, credits, config.engine.max_slots)
        self._expiry = Expiry(config.intake, self._expire, self._admission.retry_seconds)
        self._kv_cache_share = 1.0
        self._supervisor = Supervisor(
            launcher, lambda: config.engine.load_message(self._kv_cache_share), self, config.supervision
        )
        self._totals = EngineTotals(self.metrics)
        self._telemetry = Containment(self.metrics)
        self._inquiries = Inquiries()
        self._config = config
        self._storm = Storm(config.recovery)
        self._stall = StallWatch(
            config.stall_seconds, self._multiplexer, self._send, self._supervisor.condemn
        )
        self._change = trio.Event()

    # --- the users' side

    async def run(self) -> None:
        """Never returns by itself. Cancelling it ends the engine and fails what was in flight.

        Raises EngineNeverReady.
        """
        never_ready: EngineNeverReady | None = None
        try:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._expiry.run)
                nursery.start_soon(self._stall.run)
                try:
                    await self._supervisor.run()
                except EngineNeverReady as error:
                    # Raised outside of the nursery, which would wrap it in a group.
                    never_ready = error
                nursery.cancel_scope.cancel()
        finally:
            self.end_all()
        if never_ready is not None:
            raise never_ready

    @asynccontextmanager
    async def stream(self, *requests: GenerationRequest) -> AsyncIterator[RequestStream]:
        """Accept `requests`, all or none, and follow them as one: the choices of the first, then those of
        the second, and so on. Leaving the block before the final events cancels them.

        Raises, before anything is queued, InvalidRequest and its kind, TenantLimit, QueueFull,
        DeadlineUnmeetable or Unavailable.
        """
        arrived_at = trio.current_time()
        if self._config.cache_sharing == "tenant":
            # Tenants are printable: no salt of one reads as the beginning of another's.
            requests = tuple(replace(one, cache_salt=f"{one.tenant}\0{one.cache_salt}") for one in requests)
        choices = sum(request.choices for request in requests)
        try:
            with self._admission.preparing(requests[0], arrived_at, self._dispatcher.room, choices):
                prepared = [await self._off_loop.prepare(request) for request in requests]
            # Again: others were admitted while these prompts were tokenized.
            self._admission.check_prepared(
                requests[0],
                sum(len(one.prompt) * one.request.choices for one in prepared),
                deadline_of(requests[0], arrived_at),
                trio.current_time(),
                waits=not self._dispatcher.has_room,
                requests=choices,
            )
        except BaseException as error:
            self._chronicle.refused(requests[0], error)
            raise
        doorbell = Doorbell()
        pipeline_of = self._preparation.answer_pipeline
        records = records_of(prepared, self._ids, pipeline_of, arrived_at, doorbell)
        with ExitStack() as releases:
            for record in records:
                releases.callback(self._release, record)
            self._enqueue(records)
            yield RequestStream(records, doorbell, self._queue)

    async def tokenize(self, prompt: Prompt, tenant: str = "") -> list[int]:
        """The ids that `prompt` would become; nothing is queued. Raises InvalidRequest and its kind."""
        return await self._off_loop.tokenize(prompt, tenant)

    async def detokenize(self, token_ids: Sequence[int], field: str, tenant: str = "") -> str:
        """The text of these ids. Raises InvalidRequest, of `field`."""
        return await self._off_loop.detokenize(token_ids, field, tenant)

    def statistics(self) -> SchedulerStatistics:
        now = trio.current_time()
        blocked = self._admission.blocked(now)
        return SchedulerStatistics(
            queued=len(self._queue),
            in_engine=len(self._multiplexer),
            draining=self._admission.draining,
            stalled_seconds=self._stall.seconds(now),
            engine=self._supervisor.statistics(),
            blocked=blocked,
            blocked_seconds=0.0 if blocked is None else self._admission.unblock_seconds(now),
        )

    def report(self) -> SchedulerReport:
        """Who waits, who runs and what the bounds are, in full: for operators' eyes, not for every second."""
        now = trio.current_time()
        return SchedulerReport(
            draining=self._admission.draining,
            blocked=self._admission.blocked(now),
            departures_per_second=self._admission.rate.per_second(now),
            last_step_seconds=self._stall.last_step_seconds(now),
            kv_cache_share=self._kv_cache_share,
            engine_bound_requests=self._dispatcher.credits,
            queue=self._queue.statistics(now),
            running=tuple(record.statistics(now) for record in self._multiplexer),
        )

    def observe(self) -> None:
        """Bring every gauge up to this moment: ages grow while nothing happens. For a scrape: O(flows)."""
        now = trio.current_time()
        if not self._asked_budget and self._send_to_engine is not None:
            # Nobody waits for the answer, which costs a turn: it is where an engine says its budget.
            self._send_to_engine(Inspect(query=0, top=0))
            self._asked_budget = True
        self.observe_queue()
        observation.observe_flows(self.metrics, self._queue.statistics(now).flows)
        observation.observe_states(self.metrics, self._multiplexer)
        self.metrics.stalled_seconds.set(self.statistics().stalled_seconds)
        self.metrics.last_step_age.set(self._stall.last_step_seconds(now) or 0.0)

    def observe_queue(self) -> None:
        self.metrics.queued.set(len(self._queue))
        self.metrics.queued_tokens.set(self._queue.prompt_tokens)
        self.metrics.oldest_queued.set(self._queue.oldest_seconds(trio.current_time()))
        self.metrics.in_engine.set(len(self._multiplexer))

    async def wait_ready(self) -> Ready:
        """Until the engine can take requests."""
        while (ready := self._supervisor.statistics().ready) is None:
            await self._change.wait()
        return ready

    async def inspect_cache(self, clear: bool = False, top: int = 10, head_tokens: int = 0) -> Inspection:
        """What the prefix cache holds, up to a second ago; with `clear`, after letting go of what is not in
        use. Raises Unavailable where there is no engine to ask."""
        if self._send_to_engine is None:
            raise Unavailable("the engine is not running", retry_after_seconds=1.0)
        return await self._inquiries.inspect(self._send_to_engine, clear, top, head_tokens)

    def start_drain(self) -> None:
        """Admit nothing more; what was accepted goes on."""
        self._admission.close()

    async def wait_idle(self) -> None:
        """Until no request is left anywhere."""
        while len(self._queue) or len(self._multiplexer):
            await self._change.wait()

    def end_all(self) -> None:
        """Every request ends now, with an error that says the server is going; none is accepted any more."""
        self._admission.close()
        error = Draining("the server is shutting down; this answer is incomplete", retry_after_seconds=1.0)
        self._fail_queued(error)
        self._multiplexer.end_all(error)

    # --- a request's way in and out

    def _enqueue(self, records: Sequence[StreamRecord]) -> None:
        self._telemetry.sample(observation.observe_accepted, self.metrics, records)
        now = trio.current_time()
        if not len(self._multiplexer):
            # The engine was idle: its silence until now was no stall.
            self._stall.woke(now)
        for record in records:
            self._queue.push(record, now)
            self._expiry.watch(record)
        self._pump()

    def _release(self, record: StreamRecord) -> None:
        """The reader has left, before or after the final event, or the record was never enqueued."""
        record.abandon()
        queued = self._queue.remove(record.request_id, trio.current_time()) is not None
        if queued or record.state is State.QUEUED:
            record.move(Event.CANCEL)
            self._settle(record)
        else:
            self._multiplexer.cancel(record)

    def _expire(self, record: StreamRecord, error: DeadlineExceeded) -> None:
        """Its time is up. In the queue it ends here; in the engine, when the engine has let go of it."""
        if self._queue.remove(record.request_id, trio.current_time()):
            record.fail(error)
            record.move(Event.EXPIRE)
            self._settle(record)
        else:
            self._multiplexer.expire(record, error)

    def _fail_queued(self, error: SchedulerError) -> None:
        for record in self._queue.remove_all(trio.current_time()):
            record.fail(error)
            record.move(Event.RETIRE)
            self._settle(record)

    def _settle(self, record: StreamRecord) -> None:
        """A request has left its last table."""
        now = trio.current_time()
        assert record.outcome is not None, "a request left without an outcome"
        self._chronicle.ended(record, now)
        self._expiry.forget(record)
        if record.dispatched_at is not None:
            self._queue.settle(record, now)
            self._admission.rate.departed(now)
        self._pump()

    def _pump(self) -> None:
        now = trio.current_time()
        for record in self._dispatcher.pump(now):
            if record.listening:
                self._expiry.watch(record)
        self._admission.rate.follow(now, full=not self._dispatcher.has_room)
        self._telemetry.sample(self.observe_queue)
        change, self._change = self._change, trio.Event()
        change.set()

    # --- what the supervisor tells (EngineListener)

    def _send(self, message: ToEngine) -> None:
        if self._send_to_engine is not None:
            self._send_to_engine(message)

    def engine_loading(self, stage: str) -> None:
        self._on_loading(stage)

    def engine_ready(self, ready: Ready, send: Callable[[ToEngine], None]) -> None:
        self._send_to_engine = send
        self._dispatcher.engine_ready = True
        now = trio.current_time()
        self._stall.engine_ready(now)
        # The time without an engine, or before the first, is no gap between two departures.
        self._admission.rate.pause()
        if (storm := self._storm.reason(now)) is None:
            self._admission.unblock()
        else:
            self._admission.block(storm, until=now + self._config.supervision.settled_seconds)
        self._telemetry.sample(observation.observe_ready, self.metrics, ready, self._model_name)
        self._asked_budget = False
        _log.info("engine_ready", **{name: getattr(ready, name) for name in ready.__struct_fields__})
        self._pump()

    def engine_output(self, output: StepOutput) -> None:
        now = trio.current_time()
        self._stall.stepped(output, now)
        self._telemetry.run("engine_totals", self._totals.take, output.counters)
        self._multiplexer.route(output)
        for record in self._multiplexer:
            if record.started_at is None and record.state in (State.PREFILLING, State.DECODING):
                record.started_at = now
                self._expiry.watch(record)
            self._queue.observe(record, now)
        if self._multiplexer.stranded:
            # One of them may have waited for another to settle.
            self._pump()

    def engine_inspected(self, inspection: Inspection) -> None:
        self._telemetry.sample(observation.observe_inspection, self.metrics, inspection)
        self._stall.answered(inspection, trio.current_time())
        self._inquiries.answered(inspection)

    def engine_lost(self, cause: str) -> None:
        self._send_to_engine = None
        self._dispatcher.engine_ready = False
        self._stall.engine_lost()
        self._telemetry.sample(observation.observe_loss, self.metrics)
        self._telemetry.run("engine_totals", self._totals.forget)
        self._inquiries.engine_lost()
        engine = self._supervisor.statistics()
        if engine.death_cause is not DeathCause.STOPPED:
            self._recover(cause, engine)
        else:
            self._multiplexer.lose_all()
        self._pump()

    def engine_died(self, death: Death) -> None:
        self._telemetry.sample(observation.observe_death, self.metrics, death.cause)
        if death.cause is DeathCause.OUT_OF_MEMORY and not self._supervisor.statistics().failed_starts:
            self._kv_cache_share = lowered_share(self._kv_cache_share)
            self._telemetry.sample(self.metrics.kv_cache_share.set, self._kv_cache_share)
            _log.warning("kv_budget_lowered", share=self._kv_cache_share, reason=death.telling)

    def _recover(self, cause: str, engine: EngineStatistics) -> None:
        """Whoever is on board goes on with the next engine; here are the exceptions."""
        now = trio.current_time()
        on_board = [record for record in self._multiplexer if record.state is not State.STRANDED]
        culprit = count_death(on_board, self._config.recovery.max_request_deaths)
        self._multiplexer.lose_all()
        if culprit is not None and culprit.state is State.STRANDED:
            self._telemetry.sample(self.metrics.poisonous.inc)
            self._multiplexer.give_up(culprit, poison(culprit, cause))
        self._storm.died(now)
        if (storm := self._storm.reason(now)) is not None:
            self._admission.block(storm)
        if engine.failed_starts >= _STARTS_UNTIL_BLOCKED:
            reason = f"the engine does not start: {cause}"
            self._admission.block(reason)
            self._fail_queued(Unavailable(reason, retry_after_seconds=10.0))
        if engine.failed_starts >= self._config.recovery.max_failed_starts:
            for record in list(self._multiplexer):
                lost = f"the engine was lost, and none could be started to go on: {cause}"
                self._multiplexer.give_up(record, EngineLost(lost, retry_after_seconds=10.0))


_STARTS_UNTIL_BLOCKED = 2
"""After as many failed restarts in a row, waiting in the queue is no longer kind."""
