"""What speculation may give on a device of another kind. This is a simulation, without a model, a device or
real time. The engine's loop, its plans and what it learns are the real ones; tokens come from a text that
copies its prompt, and a step lasts as long as `DeviceModel` says, on a virtual clock.

On a GPU the weights are read once a step, and several tokens of a row are computed in that time. How many has
not been measured on a Mac: the simulation takes a number, and prints what follows from it. The scripted back
end never has a token pending, so drafts follow known ones, and what overlap loses is `host_seconds`.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from scheduler.engine.backend import StepResult
from scheduler.engine.drafts.speculation import Speculation
from scheduler.engine.loop import EngineLoop
from scheduler.engine.pace import PrefillPace
from scheduler.engine.plan import StepPlan
from scheduler.engine.scripted_backend import ScriptedBackend, _Row
from scheduler.shared.messages import Sampling, ScriptedPlan, StepOutput, Submit
from scheduler.shared.token_ids import compact

_PROMPT_TOKENS, _ANSWER_TOKENS = 600, 400
_VOCABULARY = 8192
_FREE_VOCABULARY = 12
"""Free text has few different tokens: three of them often come back, and what followed them seldom does."""
TEXTS: dict[str, int] = {"repeat": 0, "edit 1 in 50": 50, "edit 1 in 12": 12, "free text": 1}
"""By name, the distance between two tokens of an answer that are not copied from the prompt; 0: all are."""


@dataclass(frozen=True, slots=True)
class DeviceModel:
    """A step takes `step_seconds` while it computes no more than `free_tokens` of a row (in all rows, with
    `free_in_all`); beyond them its time grows in proportion. With drafts it takes `host_seconds` more: the
    host's work, which overlap hides in a plain step."""

    name: str
    free_tokens: int
    free_in_all: bool = False
    step_seconds: float = 0.02
    host_seconds: float = 0.001

    def seconds(self, rows: int, tokens: int) -> float:
        """Return the time of a step. `tokens`: how many are computed of each row."""
        computed = tokens * rows if self.free_in_all else tokens
        return self.step_seconds * max(1.0, computed / self.free_tokens) + self.host_seconds * (tokens > 1)


DEVICES = (
    DeviceModel("16 tokens a row are free", 17),
    DeviceModel("64 tokens in all are free", 64, free_in_all=True),
)


class _Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


class _Device(ScriptedBackend):
    """Writes answers that copy their prompts, but for one token in `edits` (0: none), which no draft can
    know."""

    def __init__(self, model: DeviceModel, edits: int, clock: _Clock) -> None:
        plan = ScriptedPlan(vocabulary=_VOCABULARY)
        super().__init__(plan, sleep=lambda seconds: None, clock=clock)
        self._model, self._edits, self._now = model, edits, clock

    def _step(self, plan: StepPlan) -> StepResult:
        width = 1 + plan.drafted
        result = super()._step(plan)
        seconds = self._model.seconds(max(1, result.decoded_rows), width)
        self._now.now += seconds
        return replace(result, model_seconds=seconds)

    def _next_token(self, row: _Row) -> int:
        sequence = row.sequence
        position = sequence.generated_tokens
        if self._edits and position % self._edits == self._edits - 1:
            choices = _FREE_VOCABULARY if self._edits == 1 else _VOCABULARY
            return random.Random(1000 * sequence.request_id + position).randrange(choices)
        return sequence.tokens[position]


@dataclass(frozen=True, slots=True)
class Simulated:
    """`ratio`: tokens a second with speculation, divided by those without. `tokens_a_step`: of each row."""

    device: str
    text: str
    rows: int
    ratio: float
    tokens_a_step: float


def simulated(device: DeviceModel, text: str, rows: int) -> Simulated:
    plain, plain_steps = _played(device, text, rows, None)
    drafted, steps = _played(device, text, rows, Speculation())
    return Simulated(device.name, text, rows, plain / drafted, plain_steps / steps)


def _played(device: DeviceModel, text: str, rows: int, speculation: Speculation | None) -> tuple[float, int]:
    """Return the seconds and the steps of a batch whose rows all begin at once."""
    clock = _Clock()
    loop = EngineLoop(
        _Device(device, TEXTS[text], clock), rows, PrefillPace(1 << 20), clock=clock, speculation=speculation
    )
    words = random.Random(rows)
    submits = [
        Submit(
            number,
            compact([words.randrange(_VOCABULARY) for _ in range(_PROMPT_TOKENS)]),
            _ANSWER_TOKENS,
            (),
            Sampling(temperature=0.0),
        )
        for number in range(rows)
    ]
    steps = 0
    loop.iterate(submits)
    while not loop.idle:
        for frame in loop.iterate(()):
            assert isinstance(frame, StepOutput)
            steps = frame.counters.steps
    return clock.now, steps


def described(rows: Sequence[int]) -> Iterator[str]:
    """Return the lines of all devices and texts."""
    yield "SIMULATED, on a virtual clock; without the acceptance of a real model's text:"
    for device in DEVICES:
        for text in TEXTS:
            found = [simulated(device, text, each) for each in rows]
            ratios = ", ".join(f"{one.rows} rows {one.ratio:.2f} ({one.tokens_a_step:.1f})" for one in found)
            yield f"{device.name}; {text}: times the tokens/s (tokens a row and step): {ratios}"
