"""A preempted request gets the tokens that it would have got: greedy, sampled, penalised,
with tokens cut off."""

from __future__ import annotations

import random

import msgspec
import pytest

from scheduler.engine import memory
from scheduler.engine.loop import EngineLoop
from scheduler.engine.pace import PrefillPace
from scheduler.shared.messages import Sampling, StepOutput, Submit
from tests.contracts.journal import GREEDY, prompt_of, request
from tests.scheduler.engine.mlx.conftest import Tiny

_SAMPLED = Sampling(temperature=1.0, top_p=0.95, seed=5)
_PENALISED = Sampling(
    temperature=0.8, seed=6, repetition_penalty=1.2, presence_penalty=0.4, frequency_penalty=0.3
)
_CUT = Sampling(
    temperature=0.8,
    seed=11,
    repetition_penalty=1.2,
    presence_penalty=0.4,
    frequency_penalty=0.3,
    min_p=0.01,
)
"""With this seed no token stands within 5e-4 of another, or of the cut-off. With seed 6, without the
frequency penalty, the two best of one token are one unit in the last place apart, and either may win."""


def _run(tiny: Tiny, submits: list[Submit], budget_tokens: int) -> tuple[dict[int, list[int]], int]:
    budget_bytes = budget_tokens * (tiny.ready.kv_bytes_per_token + 4)
    backend = tiny.backend(max_slots=16, kv_cache_bytes=budget_bytes)
    loop = EngineLoop(backend, 16, PrefillPace(256))
    tokens: dict[int, list[int]] = {submit.request_id: [] for submit in submits}
    commands, preemptions = list(submits), 0
    while commands or not loop.idle:
        for frame in loop.iterate(commands):
            assert isinstance(frame, StepOutput)
            for token in frame.tokens:
                tokens[token.request_id].append(token.token)
            preemptions = frame.counters.preemptions
            assert all(retired.reason == "length" for retired in frame.retired)
        commands = []
    return tokens, preemptions


@pytest.mark.parametrize(
    ("sampling", "tokens"),
    [
        pytest.param(_CUT, 100, id="cut"),
        pytest.param(GREEDY, 600, id="greedy-long", marks=pytest.mark.long),
        pytest.param(_SAMPLED, 600, id="sampled-long", marks=pytest.mark.long),
        pytest.param(_PENALISED, 600, id="penalised-long", marks=pytest.mark.long),
        pytest.param(_CUT, 600, id="cut-long", marks=pytest.mark.long),
    ],
)
def test_room_for_six_of_sixteen(
    tiny: Tiny, sampling: Sampling, tokens: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Sixteen requests in the bytes of six: all finish, with the tokens of an unconstrained run."""
    monkeypatch.setattr(memory, "GROWTH_TOKENS", tokens // 3)  # A row outgrows what was reserved for it.
    generator = random.Random(4)
    submits = [
        msgspec.structs.replace(
            request(number, prompt_of(generator.randrange(40, 120), number), tokens), sampling=sampling
        )
        for number in range(16)
    ]
    free, none = _run(tiny, submits, 1 << 20)
    assert none == 0
    tight, preemptions = _run(tiny, submits, 6 * (tokens + 50))
    assert preemptions > 0
    assert tight == free
