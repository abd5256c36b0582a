"""Rows with different adapters share one batch, and each gets what mlx-lm's own LoRA layers give it alone, in
any company: they join, follow one another, are cancelled and preempted."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from tests.examples import examples, sampled
from tests.scheduler.engine.mlx.adapters.adapted import AdaptedEngine, quantised, write_adapter
from tests.scheduler.engine.mlx.families import random_model
from tests.scheduler.engine.mlx.reuse import words
from tests.scheduler.engine.mlx.zoo.company import Kind


@pytest.mark.parametrize("family", sampled(["qwen3", "gpt_oss", "qwen3_next"], ["gpt_oss"]))
def test_each_has_the_tokens_of_its_adapter_alone(family: str, tmp_path: Path) -> None:
    Kind(family, adapters=tmp_path, small=True).meet(examples(8), 0)


def two_adapters(
    family: str, folder: Path, make: Callable[[str], Any] = random_model, **fields: Any
) -> AdaptedEngine:
    """Return an engine with adapters of different ranks and scales; `fields` are the adapters'."""
    red = write_adapter(make(family), folder / "red", seed=1, rank=4, scale=2.0, **fields)
    blue = write_adapter(make(family), folder / "blue", seed=2, rank=7, scale=3.0, **fields)
    return AdaptedEngine(family, red, blue, make=make)


_KINDS: dict[str, tuple[str, Callable[[str], Any], dict[str, Any]]] = {
    "in 4 bits": ("llama", quantised, {}),
    "experts in 4 bits": ("gpt_oss", quantised, {}),
    "embeddings that are the last layer too": ("qwen3", random_model, {"keys": ["model.embed_tokens"]}),
    "those in 4 bits": ("qwen3", quantised, {"keys": ["model.embed_tokens", "mlp.up_proj"]}),
    "a last layer, and some of the layers": (
        "llama",
        partial(random_model, tie_word_embeddings=False),
        {"keys": ["lm_head", "self_attn.v_proj"], "layers": 2},
    ),
}


@pytest.mark.parametrize("kind", _KINDS)
def test_so_it_is_on_layers_of_every_kind(kind: str, tmp_path: Path) -> None:
    """Six prompts of different lengths in one batch; the adapters and the base differ from each other."""
    family, make, fields = _KINDS[kind]
    engine = two_adapters(family, tmp_path, make, **fields)
    red, blue = (source.key for source in engine.sources)
    keys = ["", red, blue, red, "", blue]
    engine.ask(*(engine.submit(words(5 + 5 * at, at), adapter=key) for at, key in enumerate(keys)))
    heard = engine.ask(*(engine.submit(words(30, 1), adapter=key) for key in ("", red, blue)))
    assert len({tuple(one.tokens) for one in heard}) == 3


def test_followers_wait_for_a_leader_with_their_adapter(tmp_path: Path) -> None:
    """Rows of one adapter compute a common prompt once; those of another one compute their own."""
    engine = two_adapters("qwen3", tmp_path)
    red, blue = (source.key for source in engine.sources)
    prompt = words(60, 4)
    engine.ask(*(engine.submit([*prompt, number], adapter=key) for key in (red, blue) for number in range(3)))
    cached = [engine.heard[number].cached for number in range(1, 7)]
    assert sorted(cached[:3]) == sorted(cached[3:]) == [0, 60, 60]


def test_a_row_without_its_adapter_is_refused(tmp_path: Path) -> None:
    engine = two_adapters("qwen3", tmp_path)
    submit = engine.submit(words(5, 1), adapter="unknown")
    engine.iterate([submit])
    retired = engine.heard[submit.request_id].retired
    assert retired is not None
    assert (retired.reason, retired.detail) == ("refused", "its adapter is not loaded")
