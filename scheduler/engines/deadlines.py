"""How long a step may take before the engine is declared hung: learned from earlier steps.

The limit is a multiple of the slowest recent step of the same kind, between a floor and the operator's
ceiling (`--stall-seconds`). Killing a healthy engine costs a load, minutes for a large model; waiting for a
hung one costs seconds. So in doubt the limit is the longer one.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

from scheduler.shared.messages import StepWork

FLOOR_SECONDS = 30.0
"""Delays of a healthy step that are not its own work: pages read back from swap, kernels that Metal compiles
at their first use, other programs on the cores. We have measured 4 s on two busy cores."""
MULTIPLE = 20.0
"""Times the slowest recent step of its kind: contexts and batches grow by powers of two, not of twenty."""
_SOONER_MULTIPLE = 3.0
_RECENT = 64
_LEAST_CONTEXT = 255
"""Up to this many tokens the context does not make a step slower."""
_ENOUGH = 8
"""Steps of a kind, and of an engine, before their durations bound the next one."""


@dataclass(frozen=True, slots=True)
class TimedStep:
    """A step's kind and size, as the engine has reported them before the step. `context_tokens`: prompt and
    answer of the longest row; `prefill_tokens`: of all prompts, without what was cached."""

    work: StepWork
    context_tokens: int
    prefill_tokens: int = 0


class StepDeadlines:
    """Kept across restarts: the next engine loads the same model."""

    def __init__(self, ceiling_seconds: float) -> None:
        self.ceiling_seconds = ceiling_seconds
        self._recent: dict[tuple[StepWork, int, int], deque[float]] = {}
        self._steps = 0

    def engine_started(self) -> None:
        """Let only the ceiling bound the next steps: an engine's first steps are its slowest."""
        self._steps = 0

    def observe(self, step: TimedStep, seconds: float) -> None:
        """Take note that a step of this kind took `seconds`."""
        self._steps += 1
        key = (step.work, *_sizes(step))
        self._recent.setdefault(key, deque(maxlen=_RECENT)).append(seconds)

    def limit_seconds(self, step: TimedStep, *, sooner: bool = False) -> float:
        """Return how long a step of this kind may take. `sooner`: other engines can continue the requests
        while this one loads again, so that waiting in vain costs more than a wrong verdict."""
        ceiling, multiple = self.ceiling_seconds, MULTIPLE
        if sooner:
            ceiling, multiple = min(ceiling, FLOOR_SECONDS), _SOONER_MULTIPLE
        slowest = self._slowest_seconds(step)
        if slowest is None:
            return ceiling
        limit = max(FLOOR_SECONDS, multiple * slowest)
        return min(self.ceiling_seconds, limit)

    def _slowest_seconds(self, step: TimedStep) -> float | None:
        """Return the slowest recent step of the kind; None if too few are known."""
        if self._steps < _ENOUGH:
            return None
        # A step of a longer context or of more tokens takes at least as long, so it bounds smaller ones too.
        context, tokens = _sizes(step)
        known = [
            recent
            for (work, known_context, known_tokens), recent in self._recent.items()
            if work == step.work and known_context >= context and known_tokens >= tokens
        ]
        return max(max(recent) for recent in known) if sum(map(len, known)) >= _ENOUGH else None


def _sizes(step: TimedStep) -> tuple[int, int]:
    return max(_LEAST_CONTEXT, step.context_tokens).bit_length(), step.prefill_tokens.bit_length()


_LOAD_FLOOR_SECONDS = 300.0
"""Covers imports and a small model: 4 s of work took 60 s beside six other programs on two cores."""
_LOAD_MULTIPLE = 20.0
"""Times the slowest load so far: its weights may have been in the page cache, and the next load's may not."""


def load_limit_seconds(slowest_seconds: float | None, ceiling_seconds: float) -> float:
    """Return the bound on a load. Without `slowest_seconds` no engine has loaded yet, and only the operator's
    ceiling applies."""
    if slowest_seconds is None:
        return ceiling_seconds
    return min(ceiling_seconds, max(_LOAD_FLOOR_SECONDS, _LOAD_MULTIPLE * slowest_seconds))
