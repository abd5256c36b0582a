"""The engines behind the one queue: who they are, what goes to which, and what the end of one means."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import count

import structlog
import trio

from scheduler.config import SchedulerConfig
from scheduler.errors import (
    DeadlineExceeded,
    EngineLost,
    LastEngine,
    NodesDecide,
    SchedulerError,
    TooManyEngines,
    Unavailable,
    UnknownEngine,
)
from scheduler.intake.admission import Admission
from scheduler.intake.queue import IntakeQueue
from scheduler.link.messages import Ready
from scheduler.link.process import EngineLauncher
from scheduler.pool.adapters import Adapters
from scheduler.pool.boundary import MOST_ENGINES, EngineTraits, Launchers, PoolListener
from scheduler.pool.dispatcher import Dispatcher
from scheduler.pool.kinship import Kinship
from scheduler.pool.member import STARTS_UNTIL_BLOCKED, Member
from scheduler.pool.owner import Lost
from scheduler.pool.placement import Place, least_seconds
from scheduler.pool.together import life_of_all
from scheduler.prompt.offload import Offload
from scheduler.recovery.death import Death
from scheduler.recovery.poison import culprit_of, poison
from scheduler.recovery.supervisor import EngineNeverReady
from scheduler.requests.awaiting import Awaiting
from scheduler.requests.lifecycle import State
from scheduler.requests.record import StreamRecord
from scheduler.requests.turns import Turns
from scheduler.statistics import EngineStatistics
from scheduler.telemetry.containment import Containment
from scheduler.telemetry.metrics import ModelMetrics

_log = structlog.get_logger("scheduler")


class Pool:
    """`run` must be running. An engine's number is never given again; its name is the number."""

    def __init__(
        self,
        config: SchedulerConfig,
        launchers: Launchers,
        queue: IntakeQueue,
        admission: Admission,
        listener: PoolListener,
        metrics: ModelMetrics,
        traits: EngineTraits,
        offload: Offload,
        place: Place = least_seconds,
    ) -> None:
        self.turns = Turns(offload, self.cancel)
        self.awaiting = Awaiting(listener.retired)
        self._config = config
        self._launchers = launchers
        self._admission = admission
        self._listener = listener
        self.metrics = metrics
        self._traits = traits
        self._telemetry = Containment(metrics.server)
        self._members: dict[str, Member] = {}
        self.adapters = Adapters(config.engine.adapters)
        self.kinship = Kinship()
        self._numbers = count()
        self.loaded = config.load_at_start
        self.nodes_decide = config.nodes_decide
        self._nursery: trio.Nursery | None = None
        self._never_ready: EngineNeverReady | None = None
        self.dispatcher = Dispatcher(queue, self._members, self.awaiting, place, self._session_moved)
        for _ in range(config.engines):
            self._new()

    # --- its members

    def __len__(self) -> int:
        """How many requests the engines hold, or are to resume, or have just ended."""
        held = sum(len(member.multiplexer) for member in self)
        return held + len(self.awaiting) + len(self.turns.ending)

    def __iter__(self) -> Iterator[Member]:
        return iter(self._members.values())

    def __getitem__(self, name: str) -> Member:
        """Raise UnknownEngine."""
        try:
            return self._members[name]
        except KeyError:
            raise UnknownEngine(f"there is no engine {name!r}") from None

    @property
    def names(self) -> list[str]:
        return list(self._members)

    @property
    def records(self) -> Iterator[StreamRecord]:
        """All requests in the pool."""
        for member in self:
            yield from member.multiplexer
        yield from self.awaiting
        yield from self.turns.ending.values()

    @property
    def ready(self) -> Ready | None:
        """What an engine that is ready has reported; None if none is."""
        return self.statistics().ready

    def statistics(self) -> EngineStatistics:
        """All engines as one."""
        return life_of_all(self)

    def service_token_seconds(self, output_weight: float) -> float | None:
        """Engine time of one token of service, the mean of all engines; None: not measured yet."""
        measured = [
            seconds
            for member in self
            if (seconds := member.speeds.service_token_seconds(output_weight)) is not None
        ]
        return sum(measured) / len(measured) if measured else None

    async def run(self) -> None:
        """Never returns by itself; cancel it to end the engines. Raise EngineNeverReady if the first engines
        cannot be started, and must."""
        async with trio.open_nursery() as self._nursery:
            self._nursery.start_soon(self.turns.run)
            if self.loaded:
                self.load()
        if self._never_ready is not None:
            raise self._never_ready

    def load(self) -> None:
        """Start its engines. `unload` must have ended them."""
        assert not self.running, "its engines run"
        self.loaded = True
        self._telemetry.sample(self.metrics.loads.inc)
        for member in self:
            self._start(member)
        self._follow_blocks()

    def unload(self) -> None:
        """End its engines' processes: they are gone when `running` is false. Requests wait in the queue until
        `load`; engines hold none."""
        assert not len(self), "its engines have requests"
        self.loaded = False
        for member in self:
            member.unloaded = True
            member.stop()

    @property
    def running(self) -> bool:
        """Whether a process of its engines may be left."""
        return any(member.running for member in self)

    def forgive(self) -> None:
        """Count on engines again that could not be started."""
        for member in self:
            member.forgive()
        self._follow_blocks()

    def _start(self, member: Member) -> None:
        if self._nursery is not None:
            member.begin()
            self._nursery.start_soon(self._run, member)

    async def _run(self, member: Member) -> None:
        try:
            await member.run()
        except EngineNeverReady as error:
            self._cannot_start(member, error)
        else:
            if self.loaded or member.draining:
                self._leave(member)
        finally:
            member.running = False
            member.share.left()
        self._listener.pump()

    def _cannot_start(self, member: Member, error: EngineNeverReady) -> None:
        assert self._nursery is not None
        if self._config.must_start and not any(one.supervisor.was_ready for one in self):
            self._never_ready = error
            self._nursery.cancel_scope.cancel()
            return
        # The installation is not the reason, or other models go on.
        member.never_ready = str(error)
        _log.error("engine_failed", engine=member.name, reason=member.never_ready)
        self._follow_blocks()

    def add(self, launcher: EngineLauncher | None = None) -> Member:
        """Start a further engine; `launcher` None: as the first ones. Raise TooManyEngines; NodesDecide where
        no engine is started without a launcher of its own."""
        if launcher is None and self.nodes_decide:
            raise NodesDecide("there is an engine for each machine that has joined: let another one join")
        if len(self._members) >= MOST_ENGINES:
            raise TooManyEngines(f"there are {len(self._members)} engines, as many as there may be")
        member = self._new(launcher)
        _log.info("engine_added", engine=member.name)
        if self.loaded:
            self._start(member)
        self._follow_blocks()
        return member

    def retry(self, name: str) -> None:
        """Try again to start an engine that could not be. Raise UnknownEngine."""
        member = self[name]
        if member.failed and not member.running and self.loaded:
            self._start(member)
            self._follow_blocks()

    def remove(self, name: str) -> None:
        """Drain an engine whose machine is gone, also the last one: requests wait until another one comes.
        Raise UnknownEngine."""
        self._drain(self[name])

    def drain(self, name: str) -> Member:
        """Give an engine no new requests, and stop it at the end of those that it has. Raise UnknownEngine;
        LastEngine if no other one is left; NodesDecide."""
        member = self[name]
        if self.nodes_decide:
            raise NodesDecide("there is an engine for each machine that has joined: let its machine leave")
        if not any(one is not member and not one.draining and not one.failed for one in self):
            raise LastEngine(f"engine {name!r} is the only one that is left: add another one first")
        self._drain(member)
        return member

    def _drain(self, member: Member) -> None:
        if member.draining:
            return
        member.draining = True
        _log.info("engine_draining", engine=member.name, requests=member.requests)
        self._follow_blocks()
        self._stop_if_drained(member)
        self._listener.pump()

    def _new(self, launcher: EngineLauncher | None = None) -> Member:
        number = next(self._numbers)
        name = str(number)
        member = self._members[name] = Member(
            name,
            self._config,
            launcher or self._launchers(number),
            self,
            self.metrics.of_engine(name),
            self._telemetry,
            self._traits.observer,
            self.turns,
            lambda stage: self._traits.on_loading(name, stage),
            self._traits.share_of(name),
            self._traits.clock,
        )
        return member

    def _stop_if_drained(self, member: Member) -> None:
        if not member.draining or len(member.multiplexer):
            return
        if member.running:
            member.stop()
        else:
            self._leave(member)

    def _leave(self, member: Member) -> None:
        """It has been stopped."""
        if self._members.pop(member.name, None) is not None:
            self.metrics.forget_engine(member.name)
            self.adapters.forget_engine(member.name)
            _log.info("engine_removed", engine=member.name)
            self._follow_blocks()
            self._listener.pump()

    # --- requests

    def cancel(self, record: StreamRecord) -> None:
        """Cancel a request that no reader waits for."""
        if record.state is State.ENDING:
            self.turns.drop(record)
        elif record in self.awaiting:
            self.awaiting.cancel(record)
        elif (member := self._of(record)) is not None:
            member.multiplexer.cancel(record)

    def expire(self, record: StreamRecord, error: DeadlineExceeded) -> None:
        """A deadline passed: deliver `error` as the final event, and cancel the request in its engine. A
        request that has its final event already keeps it."""
        if record.listening:
            record.fail(error)
            self.cancel(record)

    def end_all(self, error: SchedulerError) -> None:
        """Fail every request with `error`, and cancel those that engines have."""
        for record in list(self.awaiting):
            self.awaiting.give_up(record, error)
        for record in list(self.turns.ending.values()):
            record.fail(error)
            self.turns.drop(record)
        for member in self:
            member.multiplexer.end_all(error)

    def woke(self, now: float) -> None:
        """The machine slept: the time until now was no stall."""
        for member in self:
            member.stall.woke(now)

    def _of(self, record: StreamRecord) -> Member | None:
        return None if record.engine is None else self._members.get(record.engine)

    def _session_moved(self) -> None:
        self._telemetry.sample(self.metrics.session_moves.inc)

    # --- as the members' owner

    def left(self, record: StreamRecord) -> None:
        self._leave_member(record)
        self._listener.pump()

    def retired(self, record: StreamRecord) -> None:
        self._leave_member(record)
        self._listener.retired(record)

    def _leave_member(self, record: StreamRecord) -> None:
        if (member := self._of(record)) is not None:
            member.left(record)
            self._stop_if_drained(member)

    def engine_ready(self, member: Member) -> None:
        # The time without an engine is no gap between two departures.
        self._admission.rate.pause()
        self._follow_blocks()
        self._listener.pump()

    def engine_progressed(self, record: StreamRecord, now: float, *, started: bool) -> None:
        self._listener.progressed(record, now, started=started)

    def engine_stepped(self, member: Member) -> None:
        if len(self.awaiting) or member.quarantined:
            # A suspect, or the queue, may be waiting for another request to become trusted.
            self._listener.pump()

    def engine_lost(self, member: Member, lost: Sequence[StreamRecord], cause: str) -> None:
        self.awaiting.add(lost)
        self._follow_blocks()
        serving = self._serving()
        failed_starts = [one.failed_starts for one in map(_life, serving)]
        # Where there is none, requests wait for one that joins.
        if serving and all(failed >= STARTS_UNTIL_BLOCKED for failed in failed_starts):
            reason = f"the engine does not start: {cause}"
            self._listener.fail_queued(Unavailable(reason, retry_after_seconds=10.0))
        if serving and all(one.hopeless for one in serving):
            for record in list(self.awaiting):
                reason = f"the engine was lost, and no other could be started to resume the request: {cause}"
                self.awaiting.give_up(record, EngineLost(reason, retry_after_seconds=10.0))
        if member.draining:
            # It is not replaced: the others have its requests.
            member.stop()
        self._listener.pump()

    def engine_recovery_failed(self, member: Member, cause: str) -> None:
        """A final event for every request of the lost engine, whatever state a failed recovery left it in."""
        reason = f"the engine was lost, and its requests could not be resumed: {cause}"
        error = EngineLost(reason, retry_after_seconds=10.0)
        member.multiplexer.end_all(error)
        self.awaiting.add(member.multiplexer.lose_all())
        for record in [one for one in self.awaiting if one.engine == member.name]:
            self.awaiting.give_up(record, error)
        self._listener.pump()

    def engine_died(self, member: Member, lost: Lost | None, death: Death) -> None:
        """Fail a culprit, or let suspects go on where the cause allows it. Not before it is known: what the
        device's watchdog ended may be its chunk's, and what a signal ended is nobody's."""
        if lost is None:
            return
        culprit = culprit_of(lost.suspects, self._config.recovery.max_request_deaths)
        if culprit is not None and culprit in self.awaiting:
            self._telemetry.sample(self.metrics.poisonous.inc)
            # Without the line of stderr, which is the operator's.
            self.awaiting.give_up(culprit, poison(culprit, f"{death.cause.value}: {lost.cause}"))
        if lost.suspects:
            self._listener.pump()

    def others_ready(self, member: Member) -> bool:
        return any(one is not member and one.ready and not one.draining for one in self)

    def _serving(self) -> list[Member]:
        return [member for member in self if not member.draining]

    def _follow_blocks(self) -> None:
        """Admission is closed while nobody can be counted on."""
        now = self._traits.clock()
        reasons = [(one.blocked_until, one.blocked(now)) for one in self._serving()]
        blocks = [(until, reason) for until, reason in reasons if reason is not None]
        if not reasons or len(blocks) < len(reasons):
            self._admission.unblock()
        else:
            until, reason = min(blocks)
            self._admission.block(reason, until)


def _life(member: Member) -> EngineStatistics:
    return member.supervisor.statistics()
