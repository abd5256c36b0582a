"""Vectors of an engine: those of mlx-lm alone, whatever they are batched with and however they are cut into
chunks."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import mlx.core as mx
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from scheduler.engine.mlx.device import X86, forced
from scheduler.engine.mlx.pooling.loading import _read_model
from scheduler.engine.mlx.upstream.two_way import body_of
from scheduler.shared.pooling import PooledTokens, Pooler
from tests.contracts.journal import prompt_of
from tests.examples import examples
from tests.fakes.embedder_folder import SHAPE, write_embedder
from tests.scheduler.engine.mlx.pooling.embedding_engine import EmbeddingEngine
from tests.scheduler.engine.mlx.pooling.qwen3_alone import Array, Qwen3Alone, unit
from tests.scheduler.engine.mlx.reuse import words
from tests.scheduler.engine.mlx.upstream.test_layer_slices import count_evaluations
from tests.scheduler.engine.mlx.zoo.census import write

LENGTHS = (1, 2, 7, 16, 17, 31, 33, 100)
"""Around the chunks of 16 and 32 tokens below."""
POOLED: tuple[PooledTokens, ...] = ("last", "mean")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_embedder(tmp_path_factory.mktemp("models") / "embedder")


@pytest.fixture(scope="module")
def engines(folder: Path) -> dict[str, EmbeddingEngine]:
    return {tokens: EmbeddingEngine(folder, Pooler(tokens)) for tokens in POOLED}


def pooled(hidden: Array, tokens: PooledTokens) -> Array:
    found: Array = hidden[-1] if tokens == "last" else hidden.mean(axis=0)
    return found


@pytest.mark.parametrize("tokens", POOLED)
@pytest.mark.parametrize("chunk_tokens", [16, 32, 1024])
def test_vectors_are_those_of_each_text_alone(tokens: PooledTokens, chunk_tokens: int, folder: Path) -> None:
    """To 1e-5, all lengths in one batch, read whole and in chunks."""
    engine = EmbeddingEngine(folder, Pooler(tokens), prefill_chunk_tokens=chunk_tokens)
    reference = Qwen3Alone(folder)
    prompts = [prompt_of(length, 1) for length in LENGTHS]
    for prompt, vector in zip(prompts, engine.vectors(prompts), strict=True):
        np.testing.assert_allclose(vector, unit(pooled(reference.hidden(prompt), tokens)), rtol=0, atol=1e-5)


def test_a_step_that_is_evaluated_in_slices_of_layers_gives_the_same_vectors(
    folder: Path, engines: dict[str, EmbeddingEngine], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where a device's watchdog ends long work. The first step is not predicted: nothing was measured."""
    evaluated = count_evaluations(monkeypatch)
    prompts = [prompt_of(length, 5) for length in LENGTHS]
    with forced(replace(X86, evaluation_seconds=1e-9)):
        engine = EmbeddingEngine(folder, Pooler("last"))
        engine.vectors(prompts)
        before = len(evaluated)
        sliced = engine.vectors(prompts)
    assert len(evaluated) > before, "nothing was sliced"
    for vector, whole in zip(sliced, engines["last"].vectors(prompts), strict=True):
        np.testing.assert_allclose(vector, whole, rtol=0, atol=1e-6)


@given(lengths=st.lists(st.integers(1, 60), min_size=2, max_size=8), seed=st.integers(0, 3))
@settings(max_examples=examples(15), deadline=None)
def test_padding_changes_no_vector(
    lengths: list[int], seed: int, engines: dict[str, EmbeddingEngine]
) -> None:
    """Whatever it is batched with, a text has the vector that it has alone, to 1e-6."""
    prompts = [prompt_of(length, seed + at) for at, length in enumerate(lengths)]
    for engine in engines.values():
        for prompt, vector in zip(prompts, engine.vectors(prompts), strict=True):
            np.testing.assert_allclose(vector, engine.vectors([prompt])[0], rtol=0, atol=1e-6)


def test_fewer_dimensions_are_the_first_ones_at_length_1(engines: dict[str, EmbeddingEngine]) -> None:
    """As Matryoshka models are made for."""
    prompts = [prompt_of(length, 2) for length in (3, 40)]
    whole = engines["last"].vectors(prompts)
    for vector, short in zip(whole, engines["last"].vectors(prompts, dimensions=8), strict=True):
        np.testing.assert_allclose(short, unit(vector[:8]), rtol=0, atol=1e-6)


def test_more_dimensions_than_there_are_are_refused(engines: dict[str, EmbeddingEngine]) -> None:
    (end,) = engines["last"].ask([[1, 2]], dimensions=SHAPE.hidden + 1).values()
    assert (end.reason, end.detail) == ("refused", "dimensions must be at most 32, not 33")


def test_linear_layers_follow_the_pooling(tmp_path: Path) -> None:
    """As EmbeddingGemma has them; without Normalize the vector keeps its length."""
    folder = write_embedder(tmp_path / "dense", "mean", dense=24, normalize=False)
    pooler = Pooler("mean", dense=("2_Dense",), normalize=False)
    prompt = prompt_of(9, 3)
    (vector,) = EmbeddingEngine(folder, pooler).vectors([prompt])
    weight = np.random.default_rng(5).standard_normal((24, SHAPE.hidden), np.float32)
    expected = weight @ Qwen3Alone(folder).hidden(prompt).mean(axis=0)
    np.testing.assert_allclose(vector, expected, rtol=1e-4)


def _hidden(folder: Path) -> mx.array:
    hidden: mx.array = body_of(_read_model(folder, Pooler(), None)[0])(mx.array([words(24, 1)]))
    mx.eval(hidden)
    return hidden


def test_vectors_are_those_of_the_other_spelling(tmp_path: Path) -> None:
    """Saved without the body's prefix, with rotary tables beside."""
    write("llama", tmp_path, rope_theta=54_321.0)
    expected = _hidden(tmp_path)
    weights: Any = mx.load(str(tmp_path / "model.safetensors"))
    bare = {name.removeprefix("model."): array for name, array in weights.items()}
    bare["layers.0.self_attn.rotary_emb.inv_freq"] = mx.ones((4,))
    mx.save_safetensors(str(tmp_path / "model.safetensors"), bare)
    config = json.loads((tmp_path / "config.json").read_text())
    config["rope_parameters"] = {"rope_type": "default", "rope_theta": config.pop("rope_theta")}
    (tmp_path / "config.json").write_text(json.dumps(config))
    assert float(mx.abs(expected - _hidden(tmp_path)).max()) < 1e-5
    config["rope_parameters"]["rope_theta"] = 10_000.0
    (tmp_path / "config.json").write_text(json.dumps(config))
    assert float(mx.abs(expected - _hidden(tmp_path)).max()) > 0.01, "positions would not show"
