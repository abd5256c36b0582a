"""What the engine reports: what its steps took and computed, and on `Inspect` what is cached."""

from __future__ import annotations

from dataclasses import dataclass, field

import msgspec

from scheduler.engine.backend import Cache, StepResult
from scheduler.engine.plan import StepPlan
from scheduler.engine.planning.pace import PrefillPace
from scheduler.engine.sequence import Slots
from scheduler.shared.messages import Counters, Inspect, Inspection


@dataclass(slots=True)
class StepMeter:
    """Totals of the steps since the engine process started; the pace learns from the same measurements."""

    pace: PrefillPace
    totals: Counters = field(default_factory=Counters)
    period_seconds: float = 0.0
    """From the end of the step before the last to the end of the last; 0 for the first step of a busy
    time."""
    _ended_at: float | None = None

    def idle(self) -> None:
        """Take note that the engine has no rows: the next step begins a busy time."""
        self._ended_at = None

    def measure(self, plan: StepPlan, result: StepResult, started: float, ended: float) -> None:
        """Count a step in which the model ran."""
        self.period_seconds = 0.0 if self._ended_at is None else ended - self._ended_at
        self._ended_at = ended
        seconds = ended - started
        # The scripted back end reports seconds that a virtual clock did not count.
        prefill_seconds = min(result.prefill_seconds, seconds)
        self.pace.observe_prefill(prefill_seconds, result.computed_prefill_tokens, plan.context_tokens)
        # The first step that runs ahead waits for nothing: its seconds are those of building a graph.
        plain = result.tokens and not plan.drafts
        self.pace.observe_decode(seconds - prefill_seconds, result.decoded_rows if plain else 0)
        self.totals.steps += 1
        self.totals.busy_seconds += seconds

    def emitted(self, ended: float) -> None:
        """Begin the next step's period here: tokens were returned, and the model did not run."""
        if self._ended_at is not None:
            self._ended_at = ended

    def count(self, result: StepResult, slots: Slots, prefilled_before: dict[int, int]) -> None:
        """Count the tokens of any step. `prefilled_before`: each row's prefilled tokens before the step."""
        self.totals.generated_tokens += len(result.tokens)
        for prefill in result.prefills:
            sequence = slots[prefill.request_id]
            new = prefill.done - prefilled_before[prefill.request_id]
            prefilled_before[prefill.request_id] = prefill.done
            self.totals.prefilled_tokens += new
            if sequence.preemptions:
                self.totals.re_prefilled_tokens += new


def inspection(command: Inspect, cache: Cache | None, result: StepResult, steps: int) -> Inspection:
    """Return the answer to `command`, which a plan has carried out."""
    if cache is None:
        return Inspection(command.query, 0, None, steps=steps)
    content = cache.prefixes.statistics(command.top, command.head_tokens)
    content = msgspec.structs.replace(content, running_bytes=result.kv_bytes)
    freed_bytes = result.freed_bytes if command.clear else 0
    return Inspection(command.query, freed_bytes, content, cache.disk(), steps)
