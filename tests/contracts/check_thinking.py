"""What every back end keeps of a thinking budget; run with the checks of `check_backend.py`."""

from __future__ import annotations

import msgspec
import pytest

from scheduler.engine.sequence import EngineSequence
from scheduler.errors import RequestRefused
from scheduler.shared.messages import Submit, ThinkingBudget
from scheduler.shared.token_ids import compact
from tests.contracts.check_backend import MakeBackend
from tests.contracts.journal import GREEDY, SEEDED, alone, answers, prompt_of, request

_START, _END = (503, 505), (507, 509, 510)
BUDGET = ThinkingBudget(tokens=4, start=_START, end=_END, opens=True, anywhere=True, held=1)
"""Marks of several tokens, none of which the answers of these tests have by themselves."""
_replace = msgspec.structs.replace


def _submits(tokens: int) -> list[Submit]:
    return [
        _replace(
            request(number, prompt_of(4 + number, 20), 10, sampling=sampling),
            thinking=_replace(BUDGET, tokens=tokens),
        )
        for number, sampling in enumerate((GREEDY, SEEDED))
    ]


def check_a_thinking_budget_is_exact(make: MakeBackend) -> None:
    """As many tokens as without one, then the whole end mark, then the rest up to max_tokens: alone and with
    neighbours without a budget, whose tokens are as ever."""
    backend = make()
    frees = [_replace(submit, request_id=9, thinking=None) for submit in _submits(0)]
    wholes = [alone(backend, free) for free in frees]
    for tokens in (0, 1, 4, 20):
        for submit, free, whole in zip(_submits(tokens), frees, wholes, strict=True):
            own = alone(backend, submit)
            ended = [*whole[:tokens], *_END] if tokens < len(whole) else whole
            assert own[: len(ended)] == ended
            assert len(own) == len(whole)
            courses = answers(backend, [free, submit])
            assert courses[submit.request_id].tokens == own
            assert courses[9].tokens == whole


def check_a_thinking_budget_needs_no_state(make: MakeBackend) -> None:
    """Taken up again from any of its ids, within the mark too, an answer goes on with the ids that it had."""
    backend = make()
    for submit in _submits(4):
        whole = alone(backend, submit)
        for done in range(1, len(whole)):
            rest = _replace(
                submit, request_id=8, prompt=compact([*submit.prompt, *whole[:done]]), done_tokens=done
            )
            assert alone(backend, rest) == whole[done:]


def check_marks_outside_the_vocabulary_are_refused(make: MakeBackend) -> None:
    """Before the row joins."""
    backend = make()
    outside = backend.describe().vocabulary
    for marks in ({"end": (1, outside)}, {"start": ()}):
        with pytest.raises(RequestRefused, match="mark"):
            backend.check(EngineSequence.of(_replace(request(1, [1]), thinking=_replace(BUDGET, **marks))))


THINKING_CHECKS = (
    check_a_thinking_budget_is_exact,
    check_a_thinking_budget_needs_no_state,
    check_marks_outside_the_vocabulary_are_refused,
)
