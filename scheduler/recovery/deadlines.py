"""How old a step may get before it counts as a wedge: learnt from the steps that the engine has taken.

Plain arithmetic on observations. The limit is many times the slowest recent step of the same kind, between
a floor and the operator's ceiling (`--stall-seconds`). Killing an engine that would have gone on costs a
load, minutes of a large model; waiting for one that hangs costs seconds. Every doubt speaks for waiting.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum

from scheduler.requests.lifecycle import State
from scheduler.requests.record import StreamRecord

FLOOR_SECONDS = 30.0
"""What holds up a healthy step without being its own work: pages that come back from swap, kernels that Metal
compiles at their first use, other programs on the processors. We have seen 4 s of it on two busy cores."""
MULTIPLE = 20.0
"""Of the slowest recent step of its kind: contexts and batches grow by powers of two, not of twenty."""
_RECENT = 64
_LEAST_CONTEXT = 255
"""Up to here a context makes no step longer."""
_ENOUGH = 8
"""Steps of a kind, and of an engine, before what they took says anything about the next one."""


class Work(StrEnum):
    """What a step does. The engine computes large chunks while nobody decodes, and small ones else."""

    DECODE = "decode"
    CHUNK = "decode and prefill"
    PROMPT = "prefill"


@dataclass(frozen=True, slots=True)
class Step:
    """A step's kind and size. `context_tokens`: the longest row's, prompt and answer."""

    work: Work
    context_tokens: int


def step_in_hand(on_board: Iterable[StreamRecord]) -> Step:
    """What the engine's coming step may be at most, with these requests on board."""
    reading = decoding = False
    context = 0
    for record in on_board:
        match record.state:
            case State.SUBMITTED | State.PREFILLING:
                reading = True
            case _:
                decoding = True
        context = max(context, len(record.prepared.prompt) + record.output_tokens)
    if not reading:
        return Step(Work.DECODE, context)
    return Step(Work.CHUNK if decoding else Work.PROMPT, context)


class StepDeadlines:
    """One service's; what one engine has shown holds for the next, which loads the same model."""

    def __init__(self, ceiling_seconds: float) -> None:
        self._ceiling_seconds = ceiling_seconds
        self._recent: dict[tuple[Work, int], deque[float]] = {}
        self._steps = 0

    def engine_started(self) -> None:
        """Its first steps are slower than any other's: they are held to the ceiling alone."""
        self._steps = 0

    def took(self, step: Step, seconds: float) -> None:
        """A step of this kind has ended, after so long."""
        self._steps += 1
        key = (step.work, _size(step))
        self._recent.setdefault(key, deque(maxlen=_RECENT)).append(seconds)

    def limit_seconds(self, step: Step) -> float:
        """How old a step of this kind may get."""
        if self._steps < _ENOUGH:
            return self._ceiling_seconds
        # A step of a longer context takes no less time, so it speaks for the shorter ones, never the reverse.
        size = _size(step)
        known = [recent for (work, at), recent in self._recent.items() if work is step.work and at >= size]
        if sum(map(len, known)) < _ENOUGH:
            return self._ceiling_seconds
        slowest = max(max(recent) for recent in known)
        return min(self._ceiling_seconds, max(FLOOR_SECONDS, MULTIPLE * slowest))


def _size(step: Step) -> int:
    return max(_LEAST_CONTEXT, step.context_tokens).bit_length()


_LOAD_FLOOR_SECONDS = 300.0
"""Of imports and a small model: 4 s of work took 60 s beside six other programs on two processors."""
_LOAD_MULTIPLE = 20.0
"""Of the slowest load so far: its weights may have been in the page cache, where the next one's are not."""


def load_limit_seconds(slowest_seconds: float | None, ceiling_seconds: float) -> float:
    """`slowest_seconds` None: none has loaded yet, and only the operator's ceiling is known."""
    if slowest_seconds is None:
        return ceiling_seconds
    return min(ceiling_seconds, max(_LOAD_FLOOR_SECONDS, _LOAD_MULTIPLE * slowest_seconds))
