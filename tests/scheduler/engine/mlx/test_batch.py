"""Prompts and decoding rows share steps on the real batch: whatever the chunks, the tokens are the same."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import mlx.core as mx
import pytest

from scheduler.engine.device import Traits
from scheduler.engine.mlx.device import X86, forced
from tests.contracts.journal import Rows, prompt_of, request
from tests.scheduler.engine.mlx.conftest import Tiny


def count_calls(monkeypatch: pytest.MonkeyPatch, model: Any) -> list[int]:
    """Return a list that gets the tokens of a row of each call of the model."""
    calls: list[int] = []
    call = type(model).__call__

    def counted(self: Any, inputs: mx.array, *args: Any, **kwargs: Any) -> Any:
        calls.append(inputs.shape[1])
        return call(self, inputs, *args, **kwargs)

    monkeypatch.setattr(type(model), "__call__", counted)
    return calls


@pytest.mark.parametrize("traits", [X86, replace(X86, submission_waits=False)], ids=["waits", "runs-ahead"])
def test_every_step_gives_a_token_and_no_model_call_is_for_nothing(
    tiny: Tiny, traits: Traits, monkeypatch: pytest.MonkeyPatch
) -> None:
    """From the prompt's end each step returns a token, also the first that overlaps and the one behind
    drafts; and none is computed behind the last tokens of answers whose length is known."""
    with forced(traits):
        backend = tiny.backend()
        calls = count_calls(monkeypatch, backend._model)
        answers = {1: 6, 2: 6}
        rows = Rows(backend)
        for number, tokens in answers.items():
            rows.admit(request(number, prompt_of(20, number), tokens))
        steps = 0
        while rows.running:
            result = rows.step()
            steps += 1
            assert sorted(token.request_id for token in result.tokens) == [1, 2]
    assert steps == 6
    assert calls.count(1) == 6
