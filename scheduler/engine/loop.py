"""The engine's loop: drain, plan, step, emit.

Plain and synchronous: `iterate` takes the commands that have arrived and returns the frames to send.
`__main__` waits for commands and sends frames over a socket, the tests over memory streams.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import TypeAlias, assert_never

import msgspec

from scheduler.engine.backend import Backend, StepResult
from scheduler.engine.budget.policy import BudgetChange
from scheduler.engine.budget.watch import MemoryWatch
from scheduler.engine.drafts.speculation import Proposal, Speculation
from scheduler.engine.plan import PlanInput, StepPlan, plan, with_changes
from scheduler.engine.plan_check import contradictions
from scheduler.engine.planning.chunk_ceiling import ChunkCeiling
from scheduler.engine.planning.memory import Memory
from scheduler.engine.planning.pace import PrefillPace
from scheduler.engine.reports import StepMeter, inspection
from scheduler.engine.sequence import EngineSequence, Slots
from scheduler.errors import KV_EXCEEDED, LinkError, RequestRefused
from scheduler.shared.messages import (
    Begun,
    CacheCounters,
    Cancel,
    Counters,
    Inspect,
    Inspection,
    Load,
    Pulse,
    Retired,
    StepOutput,
    StepWork,
    Submit,
    ToEngine,
    TurnEnded,
    WaitReason,
)
from scheduler.shared.waits import Waits

Outgoing: TypeAlias = StepOutput | Inspection


@dataclass(slots=True)
class _Changes:
    """What the next plan does beside its step: collected while commands are read and sequences prepared."""

    ended: list[TurnEnded] = field(default_factory=list)
    release: list[int] = field(default_factory=list)
    forget: list[int] = field(default_factory=list)
    inspect: list[Inspect] = field(default_factory=list)

    def added_to(self, todo: StepPlan) -> StepPlan:
        return with_changes(
            todo,
            ended=tuple(self.ended),
            release=tuple(self.release),
            forget=tuple(self.forget),
            clear=any(command.clear for command in self.inspect),
        )


class EngineLoop:
    """Runs one backend. Each Submit is answered by exactly one Retired."""

    def __init__(
        self,
        backend: Backend,
        max_slots: int,
        pace: PrefillPace,
        clock: Callable[[], float] = time.perf_counter,
        ceiling: ChunkCeiling | None = None,
        speculation: Speculation | None = None,
        begins: Callable[[Begun], None] = lambda begun: None,
    ) -> None:
        """`ceiling`: that of prefill, or None if no device timeout has lowered it. Without `speculation`, or
        where the back end verifies no drafts, each step computes one token of a row. `begins` sends what the
        loop is about to do, before it does it."""
        self._backend = backend
        self._pace = pace
        self._clock = clock
        self._slots = Slots(max_slots)
        # Arrival order; a dict, because a cancel must find its request without a scan.
        self._waiting: dict[int, EngineSequence] = {}
        self._retired: list[Retired] = []
        self._replies: list[Outgoing] = []
        self._changes = _Changes()
        self._cache = backend.cache
        self._background = False
        self._facts = backend.facts
        self._row_bytes = backend.facts.row_bytes
        self._last_result = StepResult()
        self._meter = StepMeter(pace)
        self._memory_watch = MemoryWatch(
            backend.device,
            None if backend.cache is None else backend.cache.prefixes,
            lambda budget: self._apply(budget),
            lambda: self._last_result.kv_bytes,
            self._row_bytes,
            backend.facts.memory_limit,
            pace.most_tokens,
        )
        self._ceiling = ceiling or ChunkCeiling(pace.most_tokens)
        self._speculation = speculation or Speculation()
        self._verified_tokens = 0 if speculation is None else backend.facts.verified_tokens
        self._admissions = 0
        self._waits = Waits()
        self._begins = begins
        self._begun = Begun("reading", ())
        self._preparing: list[int] = []
        """Waiting sequences whose prerequisites were not done when this iteration was planned."""

    @property
    def idle(self) -> bool:
        """Return whether there is no request."""
        return not self._slots and not self._waiting

    @property
    def resting(self) -> bool:
        """Return whether there is nothing to do before the next command."""
        return self.idle and not self._background

    @property
    def pausing(self) -> bool:
        """Return whether there are no rows, but background work or waiting requests."""
        return not self._slots and not self.resting

    def iterate(self, commands: Iterable[ToEngine]) -> list[Outgoing]:
        """Run one turn of the loop. Return its frames, none when there is nothing to report.

        One step behind: a command that comes during a step is in the next plan, and with overlap
        (`mlx/batch.py`) a step returns the tokens of the model call before its own, so one token more is
        computed for a row that a stop token or a cancel ends.
        """
        self._drain(commands)
        todo = self._plan()
        self._begin(todo)
        frames = self._emit(self._step(todo))
        self._background = self._backend.background(idle=not self._slots)
        return frames

    def _drain(self, commands: Iterable[ToEngine]) -> None:
        commands = list(commands)
        if read := tuple(command.request_id for command in commands if isinstance(command, Submit)):
            self._report_begun(Begun("reading", read))
        for command in commands:
            match command:
                case Submit():
                    self._receive(command)
                case TurnEnded():
                    self._changes.ended.append(command)
                case Cancel(request_id=request_id):
                    self._leave(Retired(request_id, "cancelled"))
                case Inspect():
                    self._changes.inspect.append(command)
                case Pulse():
                    pass  # The thread that reads the link has answered it.
                case Load():
                    raise LinkError("a second first message: an engine loads one model in its life")
                case _:
                    assert_never(command)

    def _receive(self, submit: Submit) -> None:
        try:
            sequence = EngineSequence.of(submit, self._clock())
            self._backend.check(sequence)
            memory = self._memory()
            if memory is not None and (most := memory.exceeded_tokens(sequence)) is not None:
                raise RequestRefused(KV_EXCEEDED, most)
        except RequestRefused as refused:
            ended = Retired(submit.request_id, "refused", str(refused), most_tokens=refused.most_tokens)
            self._retired.append(ended)
        else:
            self._waiting[sequence.request_id] = sequence

    def _refuse(self, sequence: EngineSequence, refusal: RequestRefused) -> None:
        self._speculation.ended(sequence.request_id)  # It may have run before, and been preempted.
        self._waits.forget(sequence.request_id)
        self._retired.append(Retired(sequence.request_id, "refused", str(refusal)))

    def _leave(self, retired: Retired) -> bool:
        """Let a request leave between two steps. Return False if it ended by itself: its Retired is already
        sent."""
        request_id = retired.request_id
        self._speculation.ended(request_id)
        if self._waiting.pop(request_id, None) is not None:
            self._changes.forget.append(request_id)
            self._waits.forget(request_id)
        else:
            if self._slots.release(request_id) is None:
                return False
            self._changes.release.append(request_id)
        self._retired.append(retired)
        return True

    def _apply(self, budget: BudgetChange) -> None:
        """Make the change at once, because the next reading must see what it frees. It changes no row:
        what the last step reported of them stays true."""
        self._backend.execute(StepPlan(budget=budget))

    def _plan(self) -> StepPlan:
        """Return all that the next step does. Who has a part in it that cannot be fails alone."""
        while True:
            todo = StepPlan() if self.idle else self._planned()
            wrong = contradictions(todo, self._slots, self._waiting, self._last_result.begun)
            if not wrong:
                return self._changes.added_to(todo)
            for request_id, fault in wrong.items():
                if not self._fail(request_id, f"the engine's plan was wrong: this request {fault}"):
                    raise RuntimeError(f"a plan names request {request_id}, which is not here: {fault}")

    def _fail(self, request_id: int, why: str) -> bool:
        print(f"request {request_id} fails: {why}", file=sys.stderr)
        return self._leave(Retired(request_id, "failed", why))

    def _planned(self) -> StepPlan:
        now = self._clock()
        allowance = self._memory_watch.allowance(now)
        if (room := allowance.room) is not None:
            room = replace(room, saving=room.saving and self._facts.group_cost_tokens is not None)
            allowance = replace(allowance, room=room)
        state = PlanInput(
            waiting=self._ready(),
            running=list(self._slots),
            begun=self._last_result.begun,
            free_slots=self._slots.free,
            restorable=self._facts.restorable,
            hit_ends=self._hit_ends,
            memory=self._memory(),
            pace=self._pace,
            limits=self._ceiling.limits(self._facts.limits),
            has_pending=self._last_result.has_pending,
            group_cost_tokens=self._facts.group_cost_tokens,
            admissions=self._admissions,
            allowance=allowance,
            chunk_ceiling=self._ceiling.tokens,
            verified_tokens=self._verified_tokens,
            proposals=self._proposals() if self._verified_tokens else (),
            costs=self._speculation.costs,
        )
        todo = plan(state, now)
        self._waits.look(self._reasons(todo), now)
        if todo.computes:
            evict = self._memory_watch.starting(bool(todo.chunks), todo.step_bytes)
            todo = with_changes(todo, evict=evict)
        return todo

    def _proposals(self) -> list[Proposal]:
        decoding = (row for row in self._slots if not row.prefilling)
        last = self._last_result
        return self._speculation.proposals(decoding, last.forced, last.has_pending)

    def _reasons(self, todo: StepPlan) -> dict[int, WaitReason]:
        """Return why each waiting sequence is not admitted. The plan knows only those that are ready."""
        unready: WaitReason = "preparation" if self._slots.free > 0 else "slot"
        admitted = {admit.sequence.request_id for admit in todo.admit}
        return {one: todo.waits.get(one, unready) for one in self._waiting if one not in admitted}

    def _ready(self) -> list[EngineSequence]:
        """Return the waiting sequences whose prerequisites are done."""
        ready: list[EngineSequence] = []
        self._preparing = []
        for sequence in list(self._waiting.values()) if self._slots.free > 0 else ():
            try:
                if self._backend.preparing(sequence):
                    self._preparing.append(sequence.request_id)
                else:
                    ready.append(sequence)
            except RequestRefused as refusal:
                del self._waiting[sequence.request_id]
                self._changes.forget.append(sequence.request_id)
                self._refuse(sequence, refusal)
        return ready

    def _memory(self) -> Memory | None:
        if self._cache is None:
            return None
        prefixes = self._cache.prefixes
        return Memory(
            prefixes.budget_bytes,
            self._row_bytes,
            prefixes.nbytes,
            prefixes.pinned_bytes,
            self._memory_watch.whole_bytes,
        )

    def _hit_ends(self, sequence: EngineSequence) -> Sequence[int]:
        if self._cache is None or sequence.unscored:
            return ()
        found = self._cache.prefixes.find(sequence.known)
        return [min(node.end, found.length) for node in found.path]

    def _begin(self, todo: StepPlan) -> None:
        """Report what the step computes, if the server does not know it from the last one."""
        admitted = {admit.sequence.request_id: admit.sequence for admit in todo.admit}
        chunks = [chunk.request_id for chunk in todo.chunks]
        decode = todo.decode
        if todo.emit_pending:
            decode = tuple(row.request_id for row in self._slots if not row.prefilling)
        requests = tuple(sorted({*admitted, *chunks, *decode, *self._preparing}))
        work: StepWork = "decode" if decode else "reading"
        if chunks:
            # A prompt that ends in this step decodes, too; only rows that decoded before make chunks small.
            work = "decode and prefill" if set(decode).difference(chunks) else "prefill"
        if not requests or (not chunks and (work, requests) == (self._begun.work, self._begun.requests)):
            return
        rows = [admitted[one] if one in admitted else self._slots[one] for one in (*chunks, *decode)]
        context = max((len(row.tokens) for row in rows), default=0)
        self._report_begun(Begun(work, requests, context, sum(chunk.tokens for chunk in todo.chunks)))

    def _report_begun(self, begun: Begun) -> None:
        self._begun = begun
        self._begins(begun)

    def _step(self, todo: StepPlan) -> StepResult:
        changes = self._changes
        for admit in todo.admit:
            admit.sequence.checkpoints, admit.sequence.admission = admit.checkpoints, self._admissions
            self._admissions += 1
        prefilled = {sequence.request_id: sequence.prefilled_tokens for sequence in self._slots}
        started = self._clock()
        result = self._last_result = self._backend.execute(todo)
        self._changes = _Changes()
        ended = self._clock()
        for request_id in todo.preempt:
            self._preempted(request_id, started)
        self._admitted(todo, result, prefilled, started)
        if todo.emit_pending:
            self._meter.count(result, self._slots, {})
            self._meter.emitted(ended)
        elif todo.computes and self._slots:
            self._meter.measure(todo, result, started + result.change_seconds, ended)
            result = self._computed(todo, result, prefilled)
        for retired in result.retired:
            self._slots.release(retired.request_id)
            self._speculation.ended(retired.request_id)
        if not self._slots:
            self._meter.idle()
        self._answer(changes, result)
        return result

    def _preempted(self, request_id: int, now: float) -> None:
        """Put a preempted row first in the queue. What it has computed is kept as far as there is room."""
        sequence = self._slots.release(request_id)
        assert sequence is not None, "a sequence without a slot was preempted"
        sequence.requeue()
        self._waiting = {request_id: sequence, **self._waiting}
        self._meter.totals.preemptions += 1
        self._waits.preempted(request_id, now)

    def _admitted(self, todo: StepPlan, result: StepResult, prefilled: dict[int, int], now: float) -> None:
        """Give slots to those that the back end has taken, and note what of their prompts was cached."""
        refused = dict(result.refused)
        for admit in todo.admit:
            sequence = admit.sequence
            del self._waiting[sequence.request_id]
            if (why := refused.get(sequence.request_id)) is not None:
                self._refuse(sequence, RequestRefused(why))
                continue
            self._slots.take(sequence)
            prefilled[sequence.request_id] = min(sequence.cached_tokens, sequence.prompt_tokens)
            self._waits.admitted(sequence.request_id, now)

    def _computed(self, todo: StepPlan, result: StepResult, prefilled: dict[int, int]) -> StepResult:
        """Learn from a step in which the model ran. Return what is reported of it."""
        computed, context = result.computed_prefill_tokens, todo.context_tokens
        if todo.drafts:
            computed += (1 + todo.drafted) * result.decoded_rows
            context = max([context, *(row.computed_tokens for row in self._slots)])
        self._memory_watch.measured(computed, context)
        self._judge(todo, result)
        self._ceiling.computed(result.computed_prefill_tokens)
        self._meter.count(result, self._slots, prefilled)
        if not result.prefills:
            return result
        # A resumed sequence has already reported its prompt's progress.
        reported = [prefill for prefill in result.prefills if not self._slots[prefill.request_id].resumed]
        return replace(result, prefills=reported)

    def _judge(self, todo: StepPlan, result: StepResult) -> None:
        """Learn what drafts were worth, and what a step of this width took."""
        if not (self._verified_tokens and result.tokens):
            return
        if todo.drafts:
            written: dict[int, list[int]] = {}
            for token in result.tokens:
                written.setdefault(token.request_id, []).append(token.token)
            self._speculation.count(todo.drafts, written)
        if not todo.chunks:
            seconds = self._meter.period_seconds
            self._speculation.costs.learn(seconds, result.decoded_rows, todo.drafted)

    def _answer(self, changes: _Changes, result: StepResult) -> None:
        """Answer the commands that the step has carried out."""
        steps = self._meter.totals.steps
        self._replies += [inspection(asked, self._cache, result, steps) for asked in changes.inspect]

    def _emit(self, result: StepResult) -> list[Outgoing]:
        retired, self._retired = [*self._retired, *result.retired], []
        frames: list[Outgoing] = []
        if result.tokens or result.prefills or retired or self._waits:
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

    def _counters(self) -> Counters:
        cache, disk = self._cache, None if self._cache is None else self._cache.disk()
        return msgspec.structs.replace(
            self._meter.totals,
            running=len(self._slots),
            waiting=len(self._waiting),
            kv_bytes=self._last_result.kv_bytes,
            cache=CacheCounters() if cache is None else cache.prefixes.counters(),
            memory=self._memory_watch.memory(),
            preempted=sum(sequence.preemptions > 0 for sequence in self._waiting.values()),
            row_tokens=sum(sequence.prefilled_tokens + sequence.new_tokens for sequence in self._slots),
            shared_row_tokens=sum(sequence.in_place_tokens for sequence in self._slots),
            guard=self._memory_watch.state,
            chunk_ceiling=self._ceiling.tokens,
            costs=self._pace.costs(),
            drafts=self._speculation.counters,
            disk=disk or self._meter.totals.disk,
        )
