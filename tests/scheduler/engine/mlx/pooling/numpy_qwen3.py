"""Qwen3's forward pass in NumPy, float64, written from its definition: the reference for vectors."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import numpy.typing as npt
from safetensors.numpy import load_file

from scheduler.models.random_qwen3 import Shape

Array = npt.NDArray[np.float64]
_EPSILON = 1e-6
_THETA = 1_000_000.0


class NumpyQwen3:
    """The body of a model in a folder, with or without the prefix of its tensors' names."""

    def __init__(self, folder: Path, shape: Shape) -> None:
        weights = load_file(folder / "model.safetensors")
        self._weights = {
            name.removeprefix("model."): array.astype(np.float64) for name, array in weights.items()
        }
        self._shape = shape

    def hidden(self, tokens: list[int]) -> Array:
        """Final hidden states, (tokens, hidden size)."""
        states = self._weights["embed_tokens.weight"][tokens]
        for layer in range(self._shape.layers):
            states = states + self._attention(layer, self._norm(f"layers.{layer}.input_layernorm", states))
            after = self._norm(f"layers.{layer}.post_attention_layernorm", states)
            states = states + self._feed_forward(layer, after)
        return self._norm("norm", states)

    def logits(self, tokens: list[int]) -> Array:
        """Return the last token's logits, the embeddings being tied."""
        last: Array = self._weights["embed_tokens.weight"] @ self.hidden(tokens)[-1]
        return last

    def _norm(self, name: str, states: Array) -> Array:
        scale = np.sqrt(np.square(states).mean(axis=-1, keepdims=True) + _EPSILON)
        normed: Array = states / scale * self._weights[f"{name}.weight"]
        return normed

    def _linear(self, name: str, states: Array) -> Array:
        product: Array = states @ self._weights[f"{name}.weight"].T
        return product

    def _attention(self, layer: int, states: Array) -> Array:
        shape, prefix, length = self._shape, f"layers.{layer}.self_attn", len(states)

        def heads(part: str, number: int) -> Array:
            split = self._linear(f"{prefix}.{part}_proj", states).reshape(length, number, shape.head_dim)
            return split.swapaxes(0, 1)

        queries = _rotated(self._norm(f"{prefix}.q_norm", heads("q", shape.heads)))
        keys = _rotated(self._norm(f"{prefix}.k_norm", heads("k", shape.kv_heads)))
        values = heads("v", shape.kv_heads)
        each = shape.heads // shape.kv_heads
        keys, values = np.repeat(keys, each, axis=0), np.repeat(values, each, axis=0)
        scores = queries @ keys.swapaxes(1, 2) / np.sqrt(shape.head_dim)
        scores = np.where(np.tri(length, dtype=bool), scores, -np.inf)
        weights = np.exp(scores - scores.max(axis=-1, keepdims=True))
        answer = weights / weights.sum(axis=-1, keepdims=True) @ values
        return self._linear(f"{prefix}.o_proj", answer.swapaxes(0, 1).reshape(length, -1))

    def _feed_forward(self, layer: int, states: Array) -> Array:
        prefix = f"layers.{layer}.mlp"
        gate = self._linear(f"{prefix}.gate_proj", states)
        up = self._linear(f"{prefix}.up_proj", states)
        return self._linear(f"{prefix}.down_proj", gate / (1 + np.exp(-gate)) * up)


def _rotated(states: Array) -> Array:
    """Rotary positions of (heads, tokens, size): pairs are half a head apart."""
    half = states.shape[-1] // 2
    angles = np.arange(states.shape[1])[:, None] * _THETA ** (-np.arange(half) / half)
    first, second = states[..., :half], states[..., half:]
    sine, cosine = np.sin(angles), np.cos(angles)
    return np.concatenate([first * cosine - second * sine, second * cosine + first * sine], axis=-1)


def unit(vector: Array) -> Array:
    """Return the vector scaled to length 1."""
    scaled: Array = vector / np.sqrt(np.square(vector).sum())
    return scaled
