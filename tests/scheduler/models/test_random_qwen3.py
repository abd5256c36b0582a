"""The models with random weights: their folders' guarantees, and that their answers vary."""

from __future__ import annotations

import itertools
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import mlx.core as mx
import numpy as np
import pytest
from mlx_lm import load
from mlx_lm.models.cache import make_prompt_cache

from scheduler.models.kept_folder import MANIFEST
from scheduler.models.random_qwen3 import (
    EOS_TOKEN_ID,
    TINY,
    ensure_model,
    random_weights,
)

TOKENS = 64
FIRST_VALUES = ["-0x1.380ca60000000p-5", "-0x1.b907e80000000p-8", "-0x1.0c5ec80000000p-4"]
PROMPTS = (
    "Hello",
    "What is the capital of France?",
    "Write a poem about rivers.",
    "def f(x):",
    "Tell me a joke.",
    "The quick brown fox jumps over",
    "1 2 3 4 5",
    "Explain how a queue works. " * 30,
)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return ensure_model(TINY, "tiny", tmp_path_factory.mktemp("cache"))


def greedy(model: Any, ids: list[int], count: int = TOKENS) -> tuple[list[int], float]:
    """Return the greedy continuation, and the smallest lead of its tokens over the next best."""
    cache, tokens, smallest_lead = make_prompt_cache(model), [], float("inf")
    model(mx.array([ids[:-1]]), cache=cache)
    mx.eval([layer.state for layer in cache])  # Not the logits of a whole prompt.
    ids = ids[-1:]
    for _ in range(count):
        logits = model(mx.array([ids]), cache=cache)[0, -1]
        second, first = np.sort(np.array(logits))[-2:]
        smallest_lead = min(smallest_lead, float(first - second))
        ids = [int(mx.argmax(logits))]
        tokens += ids
    return tokens, smallest_lead


def test_greedy_answers_vary_and_repeat_themselves_exactly(folder: Path) -> None:
    """Many tokens in each, different ones for each prompt, none by a small margin, no early end; twice the
    same."""
    model, tokenizer = load(str(folder))[:2]

    def answers(texts: Sequence[str]) -> list[tuple[list[int], float]]:
        prompts = [[{"role": "user", "content": text}] for text in texts]
        return [greedy(model, tokenizer.apply_chat_template(p, add_generation_prompt=True)) for p in prompts]

    first = answers(PROMPTS)
    for tokens, smallest_lead in first:
        assert len(set(tokens)) >= 20
        assert EOS_TOKEN_ID not in tokens
        assert smallest_lead > 1e-4
    for (one, _), (other, _) in itertools.combinations(first, 2):
        assert one != other
        assert one[-8:] != other[-8:]
    assert answers(PROMPTS[:2]) == first[:2]


def test_an_early_word_changes_the_answer_to_a_long_prompt(folder: Path) -> None:
    """So that a wrong row in a cached prefix cannot hide behind a thousand right ones."""
    model, tokenizer = load(str(folder))[:2]
    red, blue = (
        tokenizer.encode(f"The colour is {word}. " + "Be kind to all. " * 200) for word in ("red", "blue")
    )
    assert len(red) == len(blue) > 900
    assert greedy(model, red, 8)[0] != greedy(model, blue, 8)[0]


def test_weights_depend_on_the_seed_alone() -> None:
    """The test has the first values: they are the same on every platform and NumPy."""
    weights = random_weights(TINY)
    again, other = random_weights(TINY), random_weights(replace(TINY, seed=TINY.seed + 1))
    assert all(np.array_equal(weights[name], again[name]) for name in weights)
    name = "model.layers.1.mlp.down_proj.weight"
    assert not np.array_equal(weights[name], other[name])
    assert [float(value).hex() for value in weights["model.embed_tokens.weight"][0, :3]] == FIRST_VALUES


@pytest.mark.parametrize("name", ["model.safetensors", "tokenizer.json", MANIFEST])
@pytest.mark.parametrize("damage", ["taken", "cut"])
def test_a_folder_that_is_not_whole_is_made_again(tmp_path: Path, name: str, damage: str) -> None:
    """The remains of a cleaner of temporary files or a full disk are never used as a model."""
    folder = ensure_model(TINY, "tiny", tmp_path)
    whole = (folder / name).read_bytes()
    if damage == "taken":
        (folder / name).unlink()
    else:
        (folder / name).write_bytes(whole[:100])
    assert ensure_model(TINY, "tiny", tmp_path) == folder
    assert (folder / name).read_bytes() == whole


def test_two_processes_at_once_both_get_the_model(tmp_path: Path) -> None:
    """The second one uses the model of the first one."""
    ensure = "import sys; from scheduler.models.random_qwen3 import *; import pathlib as p;"
    ensure += "ensure_model(TINY, 'tiny', p.Path(sys.argv[1]))"
    running = [subprocess.Popen([sys.executable, "-c", ensure, str(tmp_path)]) for _ in range(2)]
    assert [process.wait() for process in running] == [0, 0]
    assert [path.name for path in tmp_path.iterdir() if "partial" in path.name] == []
