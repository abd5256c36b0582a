"""The engine's loop: drain, plan, step, emit.

Plain and synchronous: `turn` takes the commands that have arrived and returns the frames to send. `__main__`
waits for commands and sends frames over a socket, the tests over memory streams.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import TypeAlias, assert_never

import msgspec

from scheduler.engine.adapter_files import AdapterRefused, salted
from scheduler.engine.backend import Backend, StepResult
from scheduler.engine.budget.watch import MemoryWatch
from scheduler.engine.cache_report import CacheWatch
from scheduler.engine.chunk_ceiling import ChunkCeiling
from scheduler.engine.memory import Memory, charged_bytes
from scheduler.engine.pace import PrefillPace
from scheduler.engine.plan import Admit, EngineState, StepPlan, plan
from scheduler.engine.sequence import RequestRefused, Sequence, Slots
from scheduler.engine.step_meter import StepMeter
from scheduler.errors import LinkError
from scheduler.link.messages import (
    AdapterLoaded,
    Cancel,
    Counters,
    Follow,
    Inspect,
    Inspection,
    Load,
    LoadAdapter,
    Retired,
    SetMemoryLimit,
    StepOutput,
    Submit,
    ToEngine,
    TurnEnded,
    UnloadAdapter,
    WaitReason,
)
from scheduler.link.reports import EngineReport, PlanReport, SlotReport
from scheduler.link.waits import Waits

_NOTHING = StepResult()
Outgoing: TypeAlias = StepOutput | Inspection | AdapterLoaded


class EngineLoop:
    """Runs one backend. Each Submit is answered by exactly one Retired."""

    def __init__(
        self,
        backend: Backend,
        max_slots: int,
        pace: PrefillPace,
        clock: Callable[[], float] = time.perf_counter,
        ceiling: ChunkCeiling | None = None,
    ) -> None:
        """`ceiling` None: no device timeout has lowered it."""
        self._backend = backend
        self._pace = pace
        self._clock = clock
        self._slots = Slots(max_slots)
        # Arrival order; a dict, because a cancel must find its request without a scan.
        self._waiting: dict[int, Sequence] = {}
        self._retired: list[Retired] = []
        self._replies: list[Outgoing] = []
        self._watch = CacheWatch(backend.prefixes, lambda: backend.disk, clock)
        self._background = False
        self._row_bytes = backend.row_bytes
        self._meter = StepMeter(pace)
        self._memory_watch = MemoryWatch(
            backend.device,
            backend.prefixes,
            backend.kv_bytes,
            self._row_bytes,
            backend.memory_limit,
            pace.most_tokens,
            lambda: sum(charged_bytes(row, self._row_bytes) for row in self._slots),
        )
        self._limit_set = False
        """Whether the next frame answers a SetMemoryLimit."""
        self._ceiling = ceiling or ChunkCeiling(pace.most_tokens)
        self._admissions = 0
        self._last_plan = StepPlan()
        self._waits = Waits()

    @property
    def idle(self) -> bool:
        """Whether there is no request."""
        return not self._slots and not self._waiting

    @property
    def resting(self) -> bool:
        """Whether there is nothing to do before the next command."""
        return self.idle and not self._background

    @property
    def pausing(self) -> bool:
        """Whether there are no rows, but background work or waiting requests."""
        return not self._slots and not self.resting

    def turn(self, commands: Iterable[ToEngine]) -> list[Outgoing]:
        """One turn of the loop. Returns no frames when there is nothing to report."""
        self._drain(commands)
        frames = self._emit(self._step(self._plan()))
        self._background = self._backend.background(idle=not self._slots)
        return frames

    def _drain(self, commands: Iterable[ToEngine]) -> None:
        for command in commands:
            match command:
                case Submit():
                    self._receive(command)
                case TurnEnded():
                    self._end_turn(command)
                case Cancel(request_id=request_id):
                    self._cancel(request_id)
                case Inspect():
                    answer = self._watch.inspect(command, self._backend.kv_bytes())
                    self._replies.append(msgspec.structs.replace(answer, engine=self._report()))
                case SetMemoryLimit():
                    self._memory_watch.set_limit(command, self._clock())
                    self._limit_set = True
                case LoadAdapter():
                    self._replies.append(self._load_adapter(command))
                case UnloadAdapter(key=key):
                    self._backend.unload_adapter(key)
                case Load() | Follow():
                    raise LinkError("a second first message: an engine loads one model in its life")
                case _:
                    assert_never(command)

    def _end_turn(self, command: TurnEnded) -> None:
        if (prefixes := self._backend.prefixes) is not None:
            prefixes.ended(salted(command.adapter, command.salt), command.session, command.kind)

    def _load_adapter(self, command: LoadAdapter) -> AdapterLoaded:
        try:
            self._backend.load_adapter(command.adapter)
        except AdapterRefused as refused:
            return AdapterLoaded(command.query, str(refused))
        return AdapterLoaded(command.query)

    def _receive(self, submit: Submit) -> None:
        try:
            sequence = Sequence.of(submit, self._clock())
            self._backend.check(sequence)
            memory = self._memory()
            if memory is not None and (refusal := memory.refusal(sequence)) is not None:
                raise RequestRefused(refusal)
        except RequestRefused as refused:
            self._retired.append(Retired(submit.request_id, "refused", str(refused)))
        else:
            self._waiting[sequence.request_id] = sequence

    def _refuse(self, sequence: Sequence, refusal: RequestRefused) -> None:
        self._waits.forget(sequence.request_id)
        self._backend.forget(sequence)
        self._retired.append(Retired(sequence.request_id, "refused", str(refusal)))

    def _cancel(self, request_id: int) -> None:
        if (waiting := self._waiting.pop(request_id, None)) is not None:
            self._backend.forget(waiting)
            self._waits.forget(request_id)
        else:
            if self._slots.release(request_id) is None:
                return  # It ended by itself; its Retired is already sent.
            self._backend.remove(request_id)
        self._retired.append(Retired(request_id, "cancelled"))

    def _plan(self) -> StepPlan:
        if self.idle:
            return StepPlan()
        backend = self._backend
        now = self._clock()
        allowance = self._memory_watch.allowance(now)
        if (room := allowance.room) is not None:
            room = replace(room, saving=backend.save_memory(room.saving))
            allowance = replace(allowance, room=room)
        state = EngineState(
            waiting=self._ready(),
            running=list(self._slots),
            begun=backend.begun,
            free_slots=self._slots.free,
            restorable=backend.restorable,
            cached_tokens=self._cached_tokens,
            memory=self._memory(),
            pace=self._pace,
            limits=self._ceiling.limits(backend.limits),
            has_pending=backend.has_pending,
            admissions=self._admissions,
            allowance=allowance,
            chunk_ceiling=self._ceiling.tokens,
        )
        self._last_plan = plan(state, now)
        self._waits.look(self._reasons(self._last_plan), now)
        return self._last_plan

    def _reasons(self, todo: StepPlan) -> dict[int, WaitReason]:
        """Return why each waiting sequence is not admitted. The plan knows only those that are ready."""
        unready: WaitReason = "preparation" if self._slots.free > 0 else "slot"
        admitted = {admit.sequence.request_id for admit in todo.admit}
        return {one: todo.waits.get(one, unready) for one in self._waiting if one not in admitted}

    def _ready(self) -> list[Sequence]:
        """Return the waiting sequences whose prerequisites are done."""
        ready: list[Sequence] = []
        for sequence in list(self._waiting.values()) if self._slots.free > 0 else ():
            try:
                if not self._backend.preparing(sequence):
                    ready.append(sequence)
            except RequestRefused as refusal:
                del self._waiting[sequence.request_id]
                self._refuse(sequence, refusal)
        return ready

    def _memory(self) -> Memory | None:
        prefixes = self._backend.prefixes
        if prefixes is None:
            return None
        return Memory(
            prefixes.budget_bytes,
            self._row_bytes,
            prefixes.nbytes,
            prefixes.pinned_bytes,
            self._memory_watch.whole_bytes,
        )

    def _cached_tokens(self, sequence: Sequence) -> int:
        prefixes = self._backend.prefixes
        if prefixes is None or sequence.unscored:
            return 0
        return prefixes.match_length(sequence.tokens, sequence.submit.salt)

    def _step(self, todo: StepPlan) -> StepResult:
        for sequence in todo.preempt:
            self._preempt(sequence)
        for kept in todo.keep:
            self._backend.keep(kept.request_id, kept.tokens)
        for admit in todo.admit:
            self._admit(admit)
        result = self._emit_pending() if todo.emit_pending else self._compute(todo)
        for retired in result.retired:
            self._slots.release(retired.request_id)
        if not self._slots:
            self._meter.idle()
        return result

    def _preempt(self, sequence: Sequence) -> None:
        """Preempt a row: keep what it has computed if there is room, and put it first in the queue."""
        self._backend.remove(sequence.request_id)
        self._slots.release(sequence.request_id)
        sequence.requeue()
        self._waiting = {sequence.request_id: sequence, **self._waiting}
        self._meter.preemptions += 1
        self._waits.preempted(sequence.request_id, self._clock())

    def _admit(self, admit: Admit) -> None:
        sequence = admit.sequence
        del self._waiting[sequence.request_id]
        sequence.checkpoints, sequence.admission = admit.checkpoints, self._admissions
        self._admissions += 1
        try:
            self._backend.admit(sequence)
        except RequestRefused as refusal:
            self._refuse(sequence, refusal)
        else:
            self._slots.take(sequence)
            self._waits.admitted(sequence.request_id, self._clock())

    def _emit_pending(self) -> StepResult:
        result = self._backend.emit_pending()
        self._meter.count(result, self._slots, {})
        return result

    def _compute(self, todo: StepPlan) -> StepResult:
        if not self._slots:
            return _NOTHING
        prefilled = {sequence.request_id: sequence.prefilled_tokens for sequence in self._slots}
        # A sequence may have been refused when it was admitted.
        chunks = [chunk for chunk in todo.chunks if chunk.request_id in self._slots]
        self._memory_watch.starting(bool(chunks), todo.step_bytes)
        started = self._clock()
        result = self._backend.step(chunks, todo.predicted_seconds)
        self._meter.measure(todo, result, started, self._clock())
        self._memory_watch.measured(result.computed_prefill_tokens, todo.context_tokens)
        self._ceiling.computed(result.computed_prefill_tokens)
        self._meter.count(result, self._slots, prefilled)
        # A resumed sequence has already reported its prompt's progress.
        reported = [prefill for prefill in result.prefills if not self._slots[prefill.request_id].resumed]
        return replace(result, prefills=reported)

    def _emit(self, result: StepResult) -> list[Outgoing]:
        self._watch.look(idle=self.idle)
        retired, self._retired = [*self._retired, *result.retired], []
        frames: list[Outgoing] = []
        if retired and self.idle and self._memory_watch.shared:
            # No later step reports what is free now.
            self._memory_watch.look(self._clock())
        if result.tokens or result.prefills or retired or self._limit_set or self._waits:
            self._limit_set = False
            frames.append(
                StepOutput(
                    list(result.tokens),
                    list(result.prefills),
                    retired,
                    self._counters(),
                    list(result.prompt_logprobs),
                    self._waits.take(self._clock()),
                )
            )
        frames += self._replies
        self._replies = []
        return frames

    def _report(self) -> EngineReport:
        slots = [
            SlotReport(
                sequence.request_id,
                sequence.prefilled_tokens,
                sequence.prompt_tokens,
                sequence.generated_tokens,
                sequence.cached_tokens,
                sequence.preemptions,
                charged_bytes(sequence, self._row_bytes),
            )
            for sequence in self._slots
        ]
        decoding = sum(not sequence.prefilling for sequence in self._slots)
        return EngineReport(
            slots,
            len(self._waiting),
            self._pace.decode_seconds(max(1, decoding)),
            self._pace.speeds(),
            self._meter.steps,
            _plan_report(self._last_plan),
        )

    def _counters(self) -> Counters:
        meter = self._meter
        return Counters(
            steps=meter.steps,
            prefilled_tokens=meter.prefilled_tokens,
            generated_tokens=meter.generated_tokens,
            busy_seconds=meter.busy_seconds,
            running=len(self._slots),
            waiting=len(self._waiting),
            preemptions=meter.preemptions,
            re_prefilled_tokens=meter.re_prefilled_tokens,
            kv_bytes=self._backend.kv_bytes(),
            cache=self._watch.counters(),
            model_seconds=meter.model_seconds,
            between_seconds=meter.between_seconds,
            memory=self._memory_watch.memory(),
            preempted=sum(sequence.preemptions > 0 for sequence in self._waiting.values()),
            row_tokens=sum(sequence.prefilled_tokens + sequence.new_tokens for sequence in self._slots),
            shared_row_tokens=sum(sequence.in_place_tokens for sequence in self._slots),
            guard=self._memory_watch.state,
            chunk_ceiling=self._ceiling.tokens,
            costs=self._pace.costs(),
        )


def _plan_report(last: StepPlan) -> PlanReport:
    return PlanReport(
        preempted=[sequence.request_id for sequence in last.preempt],
        admitted=[admit.sequence.request_id for admit in last.admit],
        chunks={str(chunk.request_id): chunk.tokens for chunk in last.chunks},
        decoding=len(last.decode),
        reason=last.reason,
        predicted_seconds=last.predicted_seconds,
        target_seconds=last.target_seconds,
    )
