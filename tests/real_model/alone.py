"""mlx-lm alone on the real model in float32, in a process of its own: with the BLAS of the wheels that a test
process has, a prompt of 256 tokens takes a minute.

`answers` starts it; `python -m` this, it reads what is asked from stdin and prints the answers as JSON.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import mlx.core as mx
from mlx_lm.utils import dequantize_model, load_model

from scheduler.engine.mlx.cpu.fast_blas import prepare
from scheduler.shared.messages import Sampling, Submit
from scheduler.shared.token_ids import compact
from scheduler.shared.user_cache import user_cache_folder
from tests.repo.tree import ROOT
from tests.scheduler.engine.mlx.zoo.alone import Alone, Answer

WINDOW = 1000
"""The tokens of a text that are scored together."""


@dataclass(slots=True)
class ScoredAnswer(Answer):
    """`prompt`: the natural logarithm of the probability of each of the prompt's tokens but the first, where
    that was asked for."""

    prompt: list[float] = field(default_factory=list)


def child_environment() -> dict[str, str]:
    """Return this process's environment with the BLAS that an engine is given."""
    return prepare(user_cache_folder(os.environ)).environment(os.environ)


def answers(
    folder: Path, submits: Sequence[Submit], packed: bool = False, scored: bool = False
) -> list[ScoredAnswer]:
    """Return mlx-lm's answer to each. `packed`: with the weights that products of packed ones have. `scored`:
    with the prompts' log-probabilities."""
    asked = [
        [submit.prompt.tolist(), submit.max_tokens, submit.sampling.temperature, submit.sampling.seed, scored]
        for submit in submits
    ]
    ran = subprocess.run(
        [sys.executable, "-m", "tests.real_model.alone", "packed" if packed else "", str(folder)],
        input=json.dumps(asked),
        stdout=subprocess.PIPE,
        text=True,
        check=True,
        env=child_environment(),
        cwd=ROOT,
    )
    return [ScoredAnswer(**found) for found in json.loads(ran.stdout)]


def in_float32(folder: Path, packed: bool = False) -> Any:
    """Return mlx-lm's own model with the packed weights multiplied out, which rounds them to the 16 bits of
    their scales. A product of `packed` ones does not: its scales are float32 first."""
    loaded: Any = load_model(folder)
    model = loaded[0]
    if packed:
        model.set_dtype(mx.float32)
    model = dequantize_model(model)
    model.set_dtype(mx.float32)
    mx.eval(model.parameters())
    return model


def _answered(model: Any, asked: Any) -> list[dict[str, Any]]:
    alone = Alone(model)
    found = []
    for prompt, tokens, temperature, seed, scored in asked:
        answer = alone.answer(Submit(0, compact(prompt), tokens, (), Sampling(temperature, seed=seed)))
        found.append(asdict(answer) | {"prompt": _scored(model, prompt) if scored else []})
    return found


def _scored(model: Any, tokens: list[int]) -> list[float]:
    text = mx.array(tokens[:WINDOW])
    logits = model(text[None])[0]
    chosen = mx.take_along_axis(logits[:-1], text[1:, None], axis=-1)[:, 0]
    logprobs: list[float] = (chosen - mx.logsumexp(logits[:-1], axis=-1)).tolist()  # type: ignore[assignment]
    return logprobs


if __name__ == "__main__":
    model = in_float32(Path(sys.argv[2]), packed=sys.argv[1] == "packed")
    print(json.dumps(_answered(model, json.load(sys.stdin))))
