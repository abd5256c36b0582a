"""What the engine's steps add up to: the totals that every frame carries, and what the pace learns from."""

from __future__ import annotations

from dataclasses import dataclass

from scheduler.engine.backend import StepResult
from scheduler.engine.pace import PrefillPace
from scheduler.engine.plan import StepPlan
from scheduler.engine.sequence import Slots


@dataclass(slots=True)
class StepMeter:
    """Totals since the engine process started."""

    pace: PrefillPace
    steps: int = 0
    """Steps in which the model ran: one that only returns pending tokens is none."""
    prefilled_tokens: int = 0
    generated_tokens: int = 0
    re_prefilled_tokens: int = 0
    preemptions: int = 0
    busy_seconds: float = 0.0
    model_seconds: float = 0.0
    between_seconds: float = 0.0
    """Outside of steps, while there were rows."""
    _ended_at: float | None = None

    def idle(self) -> None:
        """There are no rows: the time until the next step is nobody's wait."""
        self._ended_at = None

    def measure(self, plan: StepPlan, result: StepResult, started: float, ended: float) -> None:
        """A step that computed."""
        if self._ended_at is not None:
            self.between_seconds += started - self._ended_at
        self._ended_at = ended
        seconds = ended - started
        # The scripted back end reports seconds that a virtual clock has not seen.
        prefill_seconds = min(result.prefill_seconds, seconds)
        self.pace.observe_prefill(prefill_seconds, result.computed_prefill_tokens, plan.context_tokens)
        self.pace.observe_decode(seconds - prefill_seconds, result.decoded_rows)
        self.steps += 1
        self.busy_seconds += seconds
        self.model_seconds += min(result.model_seconds, seconds)

    def count(self, result: StepResult, slots: Slots, prefilled_before: dict[int, int]) -> None:
        """Tokens of any step. `prefilled_before`: of each row, its prompt tokens before the step."""
        self.generated_tokens += len(result.tokens)
        for prefill in result.prefills:
            sequence = slots[prefill.request_id]
            new = prefill.done - prefilled_before[prefill.request_id]
            prefilled_before[prefill.request_id] = prefill.done
            self.prefilled_tokens += new
            if sequence.preemptions:
                self.re_prefilled_tokens += new
