"""EmbeddingGemma's body: Gemma 3 whose tokens see all of their text, against its forward pass in NumPy."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest
from safetensors.numpy import load_file, save_file

from scheduler.engine.load_failure import LoadRefused
from scheduler.shared.pooling import Pooler
from tests.contracts.journal import prompt_of
from tests.fakes.embedder_folder import write_embedder
from tests.scheduler.engine.mlx.pooling.embedding_engine import EmbeddingEngine
from tests.scheduler.engine.mlx.pooling.numpy_qwen3 import Array, unit

HIDDEN, HEADS, SIZE, FEED_FORWARD, LAYERS, PATTERN, WINDOW = 32, 2, 16, 48, 3, 3, 8
CONFIG = {
    "model_type": "gemma3_text",
    "hidden_size": HIDDEN,
    "num_hidden_layers": LAYERS,
    "intermediate_size": FEED_FORWARD,
    "num_attention_heads": HEADS,
    "num_key_value_heads": 1,
    "head_dim": SIZE,
    "vocab_size": 512,
    "query_pre_attn_scalar": SIZE,
    "sliding_window": WINDOW,
    "sliding_window_pattern": PATTERN,
    "rope_theta": 1e6,
    "rope_local_base_freq": 1e4,
    "use_bidirectional_attention": True,
}
POOLER = Pooler("mean", two_way=True)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("models") / "gemma"
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(CONFIG))
    chance = np.random.default_rng(3)

    def matrix(rows: int, columns: int) -> npt.NDArray[np.float32]:
        found = chance.standard_normal((rows, columns)) * 1.5 * columns**-0.5
        return np.asarray(found, np.float32)

    def norm(size: int) -> npt.NDArray[np.float32]:
        return np.asarray(chance.standard_normal(size) * 0.2, np.float32)

    weights = {"embed_tokens.weight": matrix(512, HIDDEN), "norm.weight": norm(HIDDEN)}
    for layer in range(LAYERS):
        prefix = f"layers.{layer}."
        for name in ("input", "post_attention", "pre_feedforward", "post_feedforward"):
            weights[f"{prefix}{name}_layernorm.weight"] = norm(HIDDEN)
        weights |= {
            f"{prefix}self_attn.q_proj.weight": matrix(HEADS * SIZE, HIDDEN),
            f"{prefix}self_attn.k_proj.weight": matrix(SIZE, HIDDEN),
            f"{prefix}self_attn.v_proj.weight": matrix(SIZE, HIDDEN),
            f"{prefix}self_attn.o_proj.weight": matrix(HIDDEN, HEADS * SIZE),
            f"{prefix}self_attn.q_norm.weight": norm(SIZE),
            f"{prefix}self_attn.k_norm.weight": norm(SIZE),
            f"{prefix}mlp.gate_proj.weight": matrix(FEED_FORWARD, HIDDEN),
            f"{prefix}mlp.up_proj.weight": matrix(FEED_FORWARD, HIDDEN),
            f"{prefix}mlp.down_proj.weight": matrix(HIDDEN, FEED_FORWARD),
        }
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    return folder


def hidden_states(folder: Path, tokens: list[int]) -> Array:
    weights = {
        name: array.astype(np.float64) for name, array in load_file(folder / "model.safetensors").items()
    }

    def norm(name: str, states: Array) -> Array:
        scale = np.sqrt(np.square(states).mean(axis=-1, keepdims=True) + 1e-6)
        normed: Array = states / scale * (1 + weights[f"{name}.weight"])
        return normed

    def rotated(states: Array, theta: float) -> Array:
        half = SIZE // 2
        angles = np.arange(len(tokens))[:, None] * theta ** (-np.arange(half) / half)
        first, second = states[..., :half], states[..., half:]
        sine, cosine = np.sin(angles), np.cos(angles)
        return np.concatenate([first * cosine - second * sine, second * cosine + first * sine], axis=-1)

    places = np.arange(len(tokens))
    near = np.abs(places[:, None] - places[None, :]) < WINDOW // 2 + 1
    states: Array = weights["embed_tokens.weight"][tokens] * np.sqrt(HIDDEN)
    for layer in range(LAYERS):
        prefix, is_local = f"layers.{layer}.", (layer + 1) % PATTERN != 0
        inputs = norm(f"{prefix}input_layernorm", states)

        def heads(part: str, prefix: str = prefix, inputs: Array = inputs) -> Array:
            split: Array = inputs @ weights[f"{prefix}self_attn.{part}_proj.weight"].T
            return split.reshape(len(tokens), -1, SIZE).swapaxes(0, 1)

        theta = 1e4 if is_local else 1e6
        queries = rotated(norm(f"{prefix}self_attn.q_norm", heads("q")), theta)
        keys = rotated(norm(f"{prefix}self_attn.k_norm", heads("k")), theta)
        scores = queries @ keys.swapaxes(1, 2) / np.sqrt(SIZE)
        scores = np.where(near, scores, -np.inf) if is_local else scores
        shares = np.exp(scores - scores.max(axis=-1, keepdims=True))
        answer = (shares / shares.sum(axis=-1, keepdims=True) @ heads("v")).swapaxes(0, 1)
        answer = answer.reshape(len(tokens), -1) @ weights[f"{prefix}self_attn.o_proj.weight"].T
        states = states + norm(f"{prefix}post_attention_layernorm", answer)
        inputs = norm(f"{prefix}pre_feedforward_layernorm", states)
        gate = inputs @ weights[f"{prefix}mlp.gate_proj.weight"].T
        gate = gate * (1 + np.tanh(np.sqrt(2 / np.pi) * (gate + 0.044715 * gate**3))) / 2
        product = gate * (inputs @ weights[f"{prefix}mlp.up_proj.weight"].T)
        down = product @ weights[f"{prefix}mlp.down_proj.weight"].T
        states = states + norm(f"{prefix}post_feedforward_layernorm", down)
    return norm("norm", states)


@pytest.mark.parametrize("chunk_tokens", [16, 1024])
def test_vectors_are_those_of_a_numpy_forward_pass(chunk_tokens: int, folder: Path) -> None:
    """To 1e-5, padded beside others, in and beyond the window, and beyond a chunk: a text is read as a whole,
    however small the steps are."""
    engine = EmbeddingEngine(folder, POOLER, prefill_chunk_tokens=chunk_tokens)
    prompts = [prompt_of(length, 1) for length in (1, 2, 5, 9, 17, 40)]
    for prompt, vector in zip(prompts, engine.vectors(prompts), strict=True):
        expected = unit(hidden_states(folder, prompt).mean(axis=0))
        np.testing.assert_allclose(vector, expected, rtol=0, atol=1e-5)


def test_a_later_token_changes_an_earlier_ones_state(folder: Path) -> None:
    """Or else the reference would be one that attends backwards."""
    one, other = (hidden_states(folder, prompt)[0] for prompt in ([1, 2, 3], [1, 2, 4]))
    assert np.abs(one - other).max() > 1e-3


def test_a_body_that_only_attends_backwards_is_refused(tmp_path: Path) -> None:
    qwen = write_embedder(tmp_path / "qwen")
    with pytest.raises(LoadRefused, match="Qwen3Model only backwards"):
        EmbeddingEngine(qwen, POOLER)
