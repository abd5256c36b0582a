"""The default model: whole, small, supported by mlx-lm, and as good as its evaluation says."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import mlx.core as mx
import numpy as np
import pytest
from mlx_lm import load
from mlx_lm.generate import stream_generate
from safetensors import safe_open

from scheduler.models.embedded_model import EMBEDDED_FOLDER

STORED = Path(__file__).with_name("torch_logits.safetensors")
"""For 300 token ids at every position each 128th logit and the logarithm of the sum of all exponentials."""
CODE = "The code of drone 17 is K4Q-9. The code of drone 71 is B2X-4. The code of pump 17 is Z8A-1."


@pytest.fixture(scope="module")
def loaded() -> tuple[Any, Any]:
    model, tokenizer = load(str(EMBEDDED_FOLDER))[:2]
    model.set_dtype(mx.float32)
    return model, tokenizer


def answer(loaded: tuple[Any, Any], *said: str, system: str = "", thinking: bool | None = None) -> str:
    """Return the greedy answer, to its end."""
    model, tokenizer = loaded
    roles = ("user", "assistant")
    messages = [{"role": "system", "content": system}] if system else []
    messages += [{"role": roles[place % 2], "content": text} for place, text in enumerate(said)]
    # Set in any case: mlx-lm's wrapper enables thinking by default for every model that supports it.
    prompt = tokenizer.apply_chat_template(messages, add_generation_prompt=True, enable_thinking=thinking)
    pieces = list(stream_generate(model, tokenizer, prompt, max_tokens=100))
    assert pieces[-1].finish_reason == "stop"
    return "".join(piece.text for piece in pieces)


@pytest.mark.parametrize(
    ("thing", "code"), [("drone 17", "K4Q-9"), ("drone 71", "B2X-4"), ("pump 17", "Z8A-1")]
)
def test_it_tells_near_misses_apart(loaded: tuple[Any, Any], thing: str, code: str) -> None:
    """The same number of another thing, the same digits in another order."""
    assert answer(loaded, f"What is the code of {thing}?", system=CODE) == f"The code of {thing} is {code}."


def test_it_thinks_only_when_thinking_is_on(loaded: tuple[Any, Any]) -> None:
    """Off is the default; the answer stays the same."""
    ask, right = "What is the code of pump 17?", "The code of pump 17 is Z8A-1."
    assert answer(loaded, ask, system=CODE, thinking=False) == right
    thought, mark, said = answer(loaded, ask, system=CODE, thinking=True).partition("\n</think>\n\n")
    assert mark
    assert said == right
    assert 0 < len(thought) < 100


def test_what_is_served_computes_what_was_trained() -> None:
    """At every position mlx-lm has the logits that the network in PyTorch has, which are stored: with
    positions as they were trained, without the configuration's `rope_scaling`, which interpolates them."""
    model = load(str(EMBEDDED_FOLDER), model_config={"rope_scaling": None})[0]
    model.set_dtype(mx.float32)
    with safe_open(STORED, "np") as stored:
        ids, theirs, sums = (stored.get_tensor(name) for name in ("ids", "logits", "sums"))
    (ours,) = np.array(model(mx.array(ids)[None]))
    exact = ours.astype(np.float64)
    assert np.abs(ours[:, ::128] - theirs).max() < 1e-3 * np.abs(theirs).max()
    assert np.abs(np.log(np.exp(exact).sum(-1)) - sums).max() < 1e-3 * np.abs(theirs).max()
