"""What speculation gives on a simulated device, without a model or real time: that nothing becomes slower.

The engine's loop, its plans and what it learns are the real ones; tokens come from a text that copies its
prompt, and a step lasts as long as `DeviceModel` says, on a virtual clock. On a GPU the weights are read once
a step, and several tokens of a row are computed in that time. The scripted back end never has a token
pending, so drafts follow known ones, and what overlap loses is `host_seconds`.
"""

from __future__ import annotations

import random
from dataclasses import dataclass

import pytest

from scheduler.engine.backend import StepResult
from scheduler.engine.drafts.speculation import Speculation
from scheduler.engine.loop import EngineLoop
from scheduler.engine.plan import StepPlan
from scheduler.engine.planning.pace import PrefillPace
from scheduler.engine.scripted_backend import ScriptedBackend, _Row
from scheduler.shared.messages import Sampling, ScriptedPlan, Submit
from scheduler.shared.token_ids import compact
from tests.examples import sampled

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

    free_tokens: int
    free_in_all: bool = False
    step_seconds: float = 0.02
    host_seconds: float = 0.001

    def seconds(self, rows: int, tokens: int) -> float:
        """Return the time of a step. `tokens`: how many are computed of each row."""
        computed = tokens * rows if self.free_in_all else tokens
        return self.step_seconds * max(1.0, computed / self.free_tokens) + self.host_seconds * (tokens > 1)


FREE = DeviceModel(17)
"""16 drafted tokens of each row are free."""
IN_ALL = DeviceModel(64, free_in_all=True)
DEAR = DeviceModel(1)
"""Without spare arithmetic."""


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
        self._now.now += self._model.seconds(max(1, result.decoded_rows), width)
        return result

    def _next_token(self, row: _Row) -> int:
        sequence = row.sequence
        position = sequence.generated_tokens
        if self._edits and position % self._edits == self._edits - 1:
            choices = _FREE_VOCABULARY if self._edits == 1 else _VOCABULARY
            return random.Random(1000 * sequence.request_id + position).randrange(choices)
        return sequence.tokens[position]


def ratio(device: DeviceModel, text: str, rows: int) -> float:
    """Return tokens a second with speculation, divided by those without."""
    return _seconds(device, text, rows, None) / _seconds(device, text, rows, Speculation())


def _seconds(device: DeviceModel, text: str, rows: int, speculation: Speculation | None) -> float:
    """Return the time of a batch whose rows all begin at once."""
    clock = _Clock()
    loop = EngineLoop(
        _Device(device, TEXTS[text], clock), rows, PrefillPace(1 << 20), clock=clock, speculation=speculation
    )
    words, greedy = random.Random(rows), Sampling(temperature=0.0)
    prompts = [[words.randrange(_VOCABULARY) for _ in range(_PROMPT_TOKENS)] for _ in range(rows)]
    loop.iterate(
        [Submit(row, compact(prompt), _ANSWER_TOKENS, (), greedy) for row, prompt in enumerate(prompts)]
    )
    while not loop.idle:
        loop.iterate(())
    return clock.now


@pytest.mark.parametrize("rows", sampled([1, 8], [1]))
def test_text_that_is_copied_comes_several_times_as_fast(rows: int) -> None:
    """The less of it is copied, the less; where many rows share the device's speed, the less."""
    ratios = [ratio(FREE, text, rows) for text in TEXTS]
    assert ratios == sorted(ratios, reverse=True)
    # As answers end, each size of the batch first has plain steps to measure: 7.7 at 8 rows.
    assert ratios[0] > (8 if rows == 1 else 7)
    assert ratio(IN_ALL, "repeat", 16) < ratio(FREE, "repeat", 16) / 2


@pytest.mark.parametrize("rows", sampled([1, 8, 32], [1]))
@pytest.mark.parametrize("text", TEXTS)
def test_nothing_becomes_slower(text: str, rows: int) -> None:
    """Not even where every token of a step costs as much as the first: what was tried is not tried again."""
    for device in (FREE, IN_ALL, DEAR):
        assert ratio(device, text, rows) >= 0.98
