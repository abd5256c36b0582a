"""The engine's loop: drain, plan, step, emit.

Plain and synchronous: `turn` takes the commands that have arrived and returns the one frame to send.
Who waits for commands and who sends the frame is the caller's affair (`__main__` over a socket, the
tests over memory streams).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from typing import assert_never

from scheduler.engine.backend import Backend, RequestRefused, StepResult
from scheduler.engine.planner import plan
from scheduler.engine.slots import Slot, Slots
from scheduler.errors import LinkError
from scheduler.link.messages import Cancel, Counters, Load, Retired, StepOutput, Submit, ToEngine

_NOTHING = StepResult((), (), ())


class EngineLoop:
    """Runs one backend. Each Submit that enters is answered by exactly one Retired."""

    def __init__(
        self, backend: Backend, max_slots: int, clock: Callable[[], float] = time.perf_counter
    ) -> None:
        self._backend = backend
        self._clock = clock
        self._slots = Slots(max_slots)
        # Arrival order; a dict, because a cancel must find its request without a scan.
        self._waiting: dict[int, Submit] = {}
        self._retired: list[Retired] = []
        self._steps = 0
        self._prefilled_tokens = 0
        self._generated_tokens = 0
        self._busy_seconds = 0.0

    @property
    def idle(self) -> bool:
        """Whether a step would have nothing to do."""
        return not self._slots and not self._waiting

    def turn(self, commands: Iterable[ToEngine]) -> StepOutput | None:
        """One turn of the loop. None when nothing happened that the parent must hear of."""
        self._drain(commands)
        self._admit()
        return self._emit(self._step())

    def _drain(self, commands: Iterable[ToEngine]) -> None:
        for command in commands:
            match command:
                case Submit():
                    self._waiting[command.request_id] = command
                case Cancel(request_id=request_id):
                    self._cancel(request_id)
                case Load():
                    raise LinkError("a second Load: an engine loads one model in its life")
                case _:
                    assert_never(command)

    def _cancel(self, request_id: int) -> None:
        if self._waiting.pop(request_id, None) is None:
            if self._slots.release(request_id) is None:
                return  # It had ended by itself; its Retired is on the way or has arrived.
            self._backend.remove(request_id)
        self._retired.append(Retired(request_id, "cancelled"))

    def _admit(self) -> None:
        # Again after refusals: a refused request leaves its slot to the next in line in this very step.
        while admitted := plan(self._waiting.values(), self._slots.free).admit:
            for submit in admitted:
                del self._waiting[submit.request_id]
                try:
                    self._backend.admit(submit)
                except RequestRefused as refusal:
                    self._retired.append(Retired(submit.request_id, "refused", str(refusal)))
                else:
                    self._slots.take(Slot(submit.request_id, len(submit.prompt)))

    def _step(self) -> StepResult:
        if not self._slots:
            return _NOTHING
        started = self._clock()
        result = self._backend.step()
        self._busy_seconds += self._clock() - started
        self._steps += 1
        self._generated_tokens += len(result.tokens)
        for token in result.tokens:
            self._slots[token.request_id].generated_tokens += 1
        for prefill in result.prefills:
            slot = self._slots[prefill.request_id]
            self._prefilled_tokens += prefill.done - slot.prefilled_tokens
            slot.prefilled_tokens = prefill.done
        for retired in result.retired:
            self._slots.release(retired.request_id)
        return result

    def _emit(self, result: StepResult) -> StepOutput | None:
        retired, self._retired = [*self._retired, *result.retired], []
        if not (result.tokens or result.prefills or retired):
            return None
        return StepOutput(list(result.tokens), list(result.prefills), retired, self._counters())

    def _counters(self) -> Counters:
        return Counters(
            steps=self._steps,
            prefilled_tokens=self._prefilled_tokens,
            generated_tokens=self._generated_tokens,
            busy_seconds=self._busy_seconds,
            running=len(self._slots),
            waiting=len(self._waiting),
            kv_bytes=self._backend.kv_bytes(),
        )
