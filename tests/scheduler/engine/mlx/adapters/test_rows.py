"""Rows with different adapters share one batch, and each gets what mlx-lm's own LoRA layers give it alone."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from tests.examples import sampled
from tests.scheduler.engine.mlx.adapters.adapted import AdaptedEngine, quantised, write_adapter
from tests.scheduler.engine.mlx.families import random_model
from tests.scheduler.engine.mlx.reuse import words


def two_adapters(
    family: str, folder: Path, make: Callable[[str], Any] = random_model, **fields: Any
) -> AdaptedEngine:
    """Return an engine with adapters of different ranks and scales; `fields` are the adapters'."""
    red = write_adapter(make(family), folder / "red", seed=1, rank=4, scale=2.0, **fields)
    blue = write_adapter(make(family), folder / "blue", seed=2, rank=7, scale=3.0, **fields)
    return AdaptedEngine(family, red, blue, make=make)


def ask_all(engine: AdaptedEngine) -> None:
    """Six prompts of different lengths in one batch, each checked against mlx-lm."""
    red, blue = (source.key for source in engine.sources)
    prompts = [words(5 + 5 * number, number) for number in range(6)]
    keys = ["", red, blue, red, "", blue]
    heard = engine.ask(
        *(engine.submit(prompt, adapter=key) for prompt, key in zip(prompts, keys, strict=True))
    )
    assert all(len(one.tokens) == 7 for one in heard)


@pytest.mark.parametrize("family", sampled(["llama", "qwen3", "gpt_oss"], ["llama"]))
def test_on_weights_of_4_bits(family: str, tmp_path: Path) -> None:
    ask_all(two_adapters(family, tmp_path, quantised))


@pytest.mark.parametrize("make", [random_model, quantised])
def test_on_embeddings_that_are_the_last_layer_too(make: Callable[[str], Any], tmp_path: Path) -> None:
    ask_all(two_adapters("qwen3", tmp_path, make, keys=["model.embed_tokens", "mlp.up_proj"]))


def test_on_a_last_layer_and_some_of_the_layers(tmp_path: Path) -> None:
    untied = partial(random_model, tie_word_embeddings=False)
    ask_all(two_adapters("llama", tmp_path, untied, keys=["lm_head", "self_attn.v_proj"], layers=2))


def test_one_prompt_has_three_answers(tmp_path: Path) -> None:
    """The adapters differ from each other and from the base, or no other test here could fail."""
    engine = two_adapters("qwen3", tmp_path)
    keys = ["", *(source.key for source in engine.sources)]
    heard = engine.ask(*(engine.submit(words(30, 1), adapter=key) for key in keys))
    assert len({tuple(one.tokens) for one in heard}) == 3
