"""The engine's loop: drain, plan, step, emit.

Plain and synchronous: `turn` takes the commands that have arrived and returns the frames to send.
Who waits for commands and who sends the frames is the caller's affair (`__main__` over a socket, the
tests over memory streams).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import assert_never

import msgspec

from scheduler.engine.backend import Backend, RequestRefused, StepResult
from scheduler.engine.memory_plan import Memory, charged_bytes
from scheduler.engine.pace import PrefillPace
from scheduler.engine.planner import plan
from scheduler.engine.prefix.cache_report import CacheWatch
from scheduler.engine.sequence import Sequence
from scheduler.engine.slots import Slots
from scheduler.errors import LinkError
from scheduler.link.messages import (
    Cancel,
    Counters,
    EngineReport,
    Inspect,
    Inspection,
    Load,
    Retired,
    SlotReport,
    StepOutput,
    Submit,
    ToEngine,
)

_NOTHING = StepResult()


class EngineLoop:
    """Runs one backend. Each Submit that enters is answered by exactly one Retired."""

    def __init__(
        self,
        backend: Backend,
        max_slots: int,
        pace: PrefillPace,
        clock: Callable[[], float] = time.perf_counter,
        kv_cache_share: float = 1.0,
    ) -> None:
        self._backend = backend
        self._pace = pace
        self._clock = clock
        self._kv_cache_share = kv_cache_share
        self._slots = Slots(max_slots)
        # Arrival order; a dict, because a cancel must find its request without a scan.
        self._waiting: dict[int, Sequence] = {}
        self._retired: list[Retired] = []
        self._inspections: list[Inspection] = []
        self._watch = CacheWatch(backend.prefixes, backend.disk, clock)
        self._tending = False
        self._row_bytes = backend.row_bytes
        self._preemptions = 0
        self._re_prefilled_tokens = 0
        self._steps = 0
        self._prefilled_tokens = 0
        self._generated_tokens = 0
        self._busy_seconds = 0.0
        self._model_seconds = 0.0
        self._between_seconds = 0.0
        # When the last step ended, if it left rows that wait for the next one.
        self._awaited_since: float | None = None

    @property
    def idle(self) -> bool:
        """Whether there is no request."""
        return not self._slots and not self._waiting

    @property
    def resting(self) -> bool:
        """Whether nothing can be done before a command comes."""
        return self.idle and not self._tending

    @property
    def pausing(self) -> bool:
        """Whether there is no step to take, but something goes on that is to be looked after soon."""
        return not self._slots and not self.resting

    def turn(self, commands: Iterable[ToEngine]) -> list[StepOutput | Inspection]:
        """One turn of the loop. Empty when nothing happened that the parent must hear of."""
        self._drain(commands)
        self._preempt()
        self._admit()
        frames = self._emit(self._step())
        self._tending = self._backend.tend(idle=not self._slots)
        return frames

    def _drain(self, commands: Iterable[ToEngine]) -> None:
        for command in commands:
            match command:
                case Submit():
                    self._receive(Sequence.of(command, self._clock()))
                case Cancel(request_id=request_id):
                    self._cancel(request_id)
                case Inspect():
                    answer = self._watch.inspect(command, self._backend.kv_bytes())
                    self._inspections.append(msgspec.structs.replace(answer, engine=self._report()))
                case Load():
                    raise LinkError("a second Load: an engine loads one model in its life")
                case _:
                    assert_never(command)

    def _receive(self, sequence: Sequence) -> None:
        memory = self._memory()
        if memory is not None and (refusal := memory.refusal(sequence)) is not None:
            self._retired.append(Retired(sequence.request_id, "refused", refusal))
        else:
            self._waiting[sequence.request_id] = sequence

    def _memory(self) -> Memory | None:
        prefixes = self._backend.prefixes
        if prefixes is None:
            return None
        return Memory(prefixes.budget_bytes, self._row_bytes, prefixes.pinned_bytes(), self._kv_cache_share)

    def _preempt(self) -> None:
        """Rows that have grown beyond the budget give way. What they had computed is kept as far as there is
        room, and they are first in line to go on."""
        prefixes = self._backend.prefixes
        if prefixes is None:
            return
        held_bytes = sum(charged_bytes(row, self._row_bytes) for row in self._slots)
        if held_bytes + prefixes.nbytes <= prefixes.budget_bytes:
            return  # Every step asks. What is pinned is part of what is kept, and takes a walk to know.
        while (memory := self._memory()) is not None and (victim := memory.victim(self._slots)) is not None:
            self._backend.remove(victim.request_id)
            self._slots.release(victim.request_id)
            victim.go_on_later()
            self._waiting = {victim.request_id: victim, **self._waiting}
            self._preemptions += 1

    def _cancel(self, request_id: int) -> None:
        if (waiting := self._waiting.pop(request_id, None)) is not None:
            self._backend.forget(waiting)
        else:
            if self._slots.release(request_id) is None:
                return  # It had ended by itself; its Retired is on the way or has arrived.
            self._backend.remove(request_id)
        self._retired.append(Retired(request_id, "cancelled"))

    def _admit(self) -> None:
        # Again after refusals: a refused request leaves its slot to the next in line in this very step.
        refused = True
        while refused and self._waiting and self._slots.free:
            refused = False
            todo = plan(
                [waiting for waiting in self._waiting.values() if not self._backend.warming(waiting)],
                self._slots,
                self._slots.free,
                self._backend.restorable,
                self._cached_tokens,
                self._memory(),
                self._clock(),
            )
            for kept in todo.keep:
                self._backend.keep(kept.request_id, kept.tokens)
            for sequence in todo.admit:
                del self._waiting[sequence.request_id]
                try:
                    sequence.cached_tokens = self._backend.admit(sequence)
                    sequence.prefilled_tokens = sequence.cached_tokens
                except RequestRefused as refusal:
                    refused = True
                    self._backend.forget(sequence)
                    self._retired.append(Retired(sequence.request_id, "refused", str(refusal)))
                else:
                    self._slots.take(sequence)

    def _cached_tokens(self, sequence: Sequence) -> int:
        prefixes = self._backend.prefixes
        return 0 if prefixes is None else prefixes.peek(sequence.tokens, sequence.submit.salt)

    def _step(self) -> StepResult:
        if not self._slots:
            self._awaited_since = None
            return _NOTHING
        decoding = sum(not sequence.prefilling for sequence in self._slots)
        context = max(
            (sequence.prefilled_tokens for sequence in self._slots if sequence.prefilling), default=0
        )
        started = self._clock()
        if self._awaited_since is not None:
            self._between_seconds += started - self._awaited_since
        result = self._backend.step(self._pace.tokens(decoding, len(self._slots) - decoding, context))
        ended = self._clock()
        seconds = ended - started
        # The scripted back end tells of seconds that a virtual clock has not seen.
        prefill_seconds = min(result.prefill_seconds, seconds)
        self._pace.observe_prefill(prefill_seconds, result.computed_prefill_tokens, context)
        self._pace.observe_decode(seconds - prefill_seconds, result.decoded_rows)
        self._busy_seconds += seconds
        self._model_seconds += min(result.model_seconds, seconds)
        self._steps += 1
        self._generated_tokens += len(result.tokens)
        for token in result.tokens:
            self._slots[token.request_id].output.append(token.token)
        for prefill in result.prefills:
            sequence = self._slots[prefill.request_id]
            self._prefilled_tokens += prefill.done - sequence.prefilled_tokens
            if sequence.preemptions:
                self._re_prefilled_tokens += prefill.done - sequence.prefilled_tokens
            sequence.prefilled_tokens = prefill.done
        # A request that goes on after a preemption has told of its prompt already.
        told = [
            prefill for prefill in result.prefills if not self._slots[prefill.request_id].submit.done_tokens
        ]
        for retired in result.retired:
            self._slots.release(retired.request_id)
        self._awaited_since = ended if self._slots else None
        for sequence in self._slots:
            sequence.in_place_tokens = self._backend.in_place_tokens(sequence.request_id)
        return replace(result, prefills=told)

    def _emit(self, result: StepResult) -> list[StepOutput | Inspection]:
        self._watch.look(idle=self.idle)
        retired, self._retired = [*self._retired, *result.retired], []
        frames: list[StepOutput | Inspection] = []
        if result.tokens or result.prefills or retired:
            frames.append(StepOutput(list(result.tokens), list(result.prefills), retired, self._counters()))
        frames += self._inspections
        self._inspections = []
        return frames

    def _report(self) -> EngineReport:
        slots = [
            SlotReport(
                sequence.request_id,
                sequence.prefilled_tokens,
                len(sequence.tokens),
                sequence.generated_tokens,
                sequence.cached_tokens,
                sequence.preemptions,
                charged_bytes(sequence, self._row_bytes),
            )
            for sequence in self._slots
        ]
        decoding = sum(not sequence.prefilling for sequence in self._slots)
        step_seconds = self._pace.decode_seconds(max(1, decoding))
        return EngineReport(slots, len(self._waiting), step_seconds, self._pace.speeds(), self._steps)

    def _counters(self) -> Counters:
        return Counters(
            steps=self._steps,
            prefilled_tokens=self._prefilled_tokens,
            generated_tokens=self._generated_tokens,
            busy_seconds=self._busy_seconds,
            running=len(self._slots),
            waiting=len(self._waiting),
            preemptions=self._preemptions,
            re_prefilled_tokens=self._re_prefilled_tokens,
            kv_bytes=self._backend.kv_bytes(),
            cache=self._watch.counters(),
            model_seconds=self._model_seconds,
            between_seconds=self._between_seconds,
            memory=self._backend.memory(),
            preempted=sum(sequence.preemptions > 0 for sequence in self._waiting.values()),
            row_tokens=sum(sequence.prefilled_tokens + len(sequence.output) for sequence in self._slots),
            shared_row_tokens=sum(sequence.in_place_tokens for sequence in self._slots),
        )
