"""EmbeddingGemma's body: Gemma 3 whose tokens see all of their text, against mlx-lm's layers behind masks of
one text."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import mlx.core as mx
import numpy as np
import pytest

from scheduler.engine.load_failure import LoadRefused
from scheduler.shared.pooling import Pooler
from tests.fakes.embedder_folder import write_embedder
from tests.scheduler.engine.mlx.pooling.embedding_engine import EmbeddingEngine
from tests.scheduler.engine.mlx.pooling.qwen3_alone import Array, unit
from tests.scheduler.engine.mlx.reuse import words
from tests.scheduler.engine.mlx.zoo.census import write

WINDOW = 8
POOLER = Pooler("mean", two_way=True)


def hidden_states(model: Any, tokens: list[int]) -> Array:
    body, places = model.model, mx.arange(len(tokens))
    near = mx.abs(places[:, None] - places[None, :]) < WINDOW // 2 + 1
    hidden = body.embed_tokens(mx.array([tokens])) * body.args.hidden_size**0.5
    for layer in body.layers:
        hidden = layer(hidden, near if layer.self_attn.is_sliding else None, None)
    return np.array(body.norm(hidden)[0])


@pytest.mark.parametrize("chunk_tokens", [16, 1024])
def test_vectors_are_those_of_each_text_alone(chunk_tokens: int, tmp_path: Path) -> None:
    """To 1e-5, padded beside others, in and beyond the window, and beyond a chunk: a text is read as a whole,
    however small the steps are. A later token does change an earlier one's state."""
    model = write("gemma3_text", tmp_path, sliding_window=WINDOW)
    engine = EmbeddingEngine(tmp_path, POOLER, prefill_chunk_tokens=chunk_tokens)
    prompts = [words(length, 1) for length in (1, 2, 5, 9, 17, 40)]
    for prompt, vector in zip(prompts, engine.vectors(prompts), strict=True):
        expected = unit(hidden_states(model, prompt).mean(axis=0))
        np.testing.assert_allclose(vector, expected, rtol=0, atol=1e-5)
    one, other = (hidden_states(model, prompt)[0] for prompt in ([1, 2, 3], [1, 2, 4]))
    assert np.abs(one - other).max() > 1e-3


def test_a_body_that_only_attends_backwards_is_refused(tmp_path: Path) -> None:
    qwen = write_embedder(tmp_path / "qwen")
    with pytest.raises(LoadRefused, match="Qwen3Model only backwards"):
        EmbeddingEngine(qwen, POOLER)
