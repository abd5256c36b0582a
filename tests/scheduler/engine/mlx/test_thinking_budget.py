"""Thinking budgets on a real model: its own tokens, the whole end mark, and what it says to that."""

from __future__ import annotations

import random
from itertools import product

import msgspec
import pytest

from scheduler.engine import memory
from scheduler.engine.loop import EngineLoop
from scheduler.engine.pace import PrefillPace
from scheduler.shared.messages import Sampling, StepOutput, Submit, ThinkingBudget
from scheduler.shared.token_ids import compact
from tests.contracts.journal import GREEDY, alone, answers, prompt_of, request
from tests.scheduler.engine.mlx.conftest import Tiny

END = (509, 510)
BUDGET = ThinkingBudget(tokens=7, start=(503, 505), end=END, opens=True, anywhere=True, held=1)
_SAMPLED = Sampling(temperature=1.0, top_p=0.95, seed=5)
_PENALISED = Sampling(temperature=0.8, seed=6, repetition_penalty=1.2, presence_penalty=0.4, min_p=0.01)
_replace = msgspec.structs.replace
sampled = pytest.mark.parametrize(
    "sampling", [GREEDY, _SAMPLED, _PENALISED], ids=["greedy", "sampled", "penalised"]
)


def budgeted(
    number: int, sampling: Sampling, tokens: int = 7, max_tokens: int = 30, opens: bool = True
) -> Submit:
    budget = _replace(BUDGET, tokens=tokens, opens=opens)
    return _replace(
        request(number, prompt_of(9 + number, 31), max_tokens, sampling=sampling), thinking=budget
    )


@sampled
def test_only_the_mark_is_not_the_models(tiny: Tiny, sampling: Sampling) -> None:
    """Before it the tokens of the request without a budget; after it those of a request without a budget that
    is taken up again behind the mark."""
    backend = tiny.backend()
    submit = budgeted(1, sampling)
    own, free = alone(backend, submit), alone(backend, _replace(submit, thinking=None))
    assert own[:9] == [*free[:7], *END]
    rest = _replace(
        submit, request_id=2, prompt=compact([*submit.prompt, *own[:9]]), done_tokens=9, thinking=None
    )
    assert own[9:] == alone(tiny.backend(), rest)


@pytest.mark.parametrize("device", ["as it is", "of its own"])
def test_a_mixed_batch_changes_nobody(tiny: Tiny, device: str, request: pytest.FixtureRequest) -> None:
    """Budgets of several sizes beside rows without, of all kinds of sampling, in the graph and on the host:
    each has the tokens that it has alone."""
    if device == "of its own":
        request.getfixturevalue("device_of_its_own")
    backend = tiny.backend()
    budgets, kinds = (0, 1, 6, None), (GREEDY, _SAMPLED, _PENALISED)
    submits = []
    for number, (tokens, sampling) in enumerate(product(budgets, kinds)):
        submit = budgeted(number, sampling, tokens or 0, 14 + number)
        submits.append(submit if tokens is not None else _replace(submit, thinking=None))
    together = answers(backend, submits)
    for submit in submits:
        assert together[submit.request_id].tokens == alone(backend, submit)


def test_the_model_may_open_reasoning_itself(tiny: Tiny) -> None:
    """With any budget, 0 too: it is counted from behind the opening mark."""
    submit = budgeted(1, GREEDY, 100, opens=False)
    free = alone(tiny.backend(), submit)
    start = tuple(free[4:6])
    for tokens in (0, 1, 5):
        budget = _replace(BUDGET, tokens=tokens, start=start, opens=False)
        own = alone(tiny.backend(), _replace(submit, thinking=budget))
        begun = next(n for n in range(len(free)) if tuple(free[n : n + 2]) == start) + 2
        assert own[: begun + tokens + 2] == [*free[: begun + tokens], *END]
        assert start not in {tuple(own[n : n + 2]) for n in range(begun, len(own))}


def test_log_probabilities_are_the_models_own(tiny: Tiny) -> None:
    """Forced tokens have what the model would have given them, too, which is not much and not nothing."""
    submit = _replace(budgeted(1, _SAMPLED), top_logprobs=5)
    course = answers(tiny.backend(), [submit])[1]
    free = answers(tiny.backend(), [_replace(submit, thinking=None)])[1]
    forced = course.logprobs[7]
    assert forced is not None
    assert free.logprobs[7] is not None
    assert forced.top == free.logprobs[7].top
    assert -100 < forced.chosen < free.logprobs[7].top[0][1]


def test_a_stop_token_in_the_mark_ends_the_row(tiny: Tiny) -> None:
    """What ends an answer ends it, `min_tokens` or not."""
    submit = _replace(budgeted(1, GREEDY), stop_token_ids=(END[1],), min_tokens=20)
    course = answers(tiny.backend(), [submit])[1]
    assert course.tokens[7:] == [*END]


@pytest.mark.parametrize(
    ("sampling", "tokens"),
    [
        pytest.param(_SAMPLED, 100, id="sampled"),
        pytest.param(GREEDY, 600, id="greedy-long", marks=pytest.mark.long),
        pytest.param(_SAMPLED, 600, id="sampled-long", marks=pytest.mark.long),
    ],
)
def test_preemption_changes_nothing(
    tiny: Tiny, sampling: Sampling, tokens: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Eight with budgets that end anywhere in their answers, in the bytes of three."""
    monkeypatch.setattr(memory, "GROWTH_TOKENS", tokens // 3)  # A row outgrows what was reserved for it.
    generator = random.Random(4)
    submits = [
        _replace(
            request(number, prompt_of(generator.randrange(40, 120), number), tokens, sampling=sampling),
            thinking=_replace(BUDGET, tokens=generator.randrange(10, tokens - 10)),
        )
        for number in range(8)
    ]
    free, none = _run(tiny, submits, 1 << 20)
    tight, preemptions = _run(tiny, submits, 3 * (tokens + 50))
    assert none == 0 < preemptions
    assert tight == free
    for submit in submits:
        assert submit.thinking is not None
        assert submit.thinking.tokens is not None
        at = submit.thinking.tokens
        assert tuple(free[submit.request_id][at : at + 2]) == END


def _run(tiny: Tiny, submits: list[Submit], budget_tokens: int) -> tuple[dict[int, list[int]], int]:
    budget_bytes = budget_tokens * (tiny.ready.kv_bytes_per_token + 4)
    loop = EngineLoop(tiny.backend(max_slots=16, kv_cache_bytes=budget_bytes), 16, PrefillPace(256))
    tokens: dict[int, list[int]] = {submit.request_id: [] for submit in submits}
    commands, preemptions = list(submits), 0
    while commands or not loop.idle:
        for frame in loop.iterate(commands):
            assert isinstance(frame, StepOutput)
            for token in frame.tokens:
                tokens[token.request_id].append(token.token)
            preemptions = frame.counters.preemptions
        commands = []
    return tokens, preemptions
