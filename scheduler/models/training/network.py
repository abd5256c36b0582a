"""Qwen3 in PyTorch, as mlx-lm computes it: a function of tensors under their Hugging Face names.

Written out because what is trained must be what is served, and to train is all that it can do: no cache,
no batching of unequal lengths. Tests compare its logits with mlx-lm's; after a change to this file
`python -m tests.scheduler.models.torch_logits` computes anew what they compare with.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

import torch
import torch.nn.functional as functional
from torch import Tensor

Weights = dict[str, Tensor]


@dataclass(frozen=True, slots=True)
class Shape:
    """The sizes of the model. Weights of 16 bits and the tokenizer stay below 8 MB."""

    hidden: int = 256
    layers: int = 5
    heads: int = 4
    kv_heads: int = 2
    head_dim: int = 64
    feed_forward: int = 512
    vocabulary: int = 2048
    context: int = 40960
    rope_base: float = 100_000.0
    norm_epsilon: float = 1e-6

    def config(self) -> dict[str, Any]:
        """config.json, as mlx-lm and transformers read it."""
        sizes = asdict(self)
        return {
            "architectures": ["Qwen3ForCausalLM"],
            "model_type": "qwen3",
            "hidden_size": sizes["hidden"],
            "num_hidden_layers": sizes["layers"],
            "num_attention_heads": sizes["heads"],
            "num_key_value_heads": sizes["kv_heads"],
            "head_dim": sizes["head_dim"],
            "intermediate_size": sizes["feed_forward"],
            "vocab_size": sizes["vocabulary"],
            "max_position_embeddings": sizes["context"],
            "rope_theta": sizes["rope_base"],
            "rms_norm_eps": sizes["norm_epsilon"],
            "hidden_act": "silu",
            "attention_bias": False,
            "tie_word_embeddings": True,
            "torch_dtype": "bfloat16",
            "bos_token_id": None,
        }


def initial_weights(shape: Shape, generator: torch.Generator) -> Weights:
    """Small normal values; what writes to the residual stream starts at less, the deeper the network."""

    def normal(rows: int, columns: int, deviation: float) -> Tensor:
        return torch.randn(rows, columns, generator=generator) * deviation

    queries, keys = shape.heads * shape.head_dim, shape.kv_heads * shape.head_dim
    inward, outward = shape.hidden**-0.5, 0.3 * (2 * shape.layers) ** -0.5
    weights = {
        "model.embed_tokens.weight": normal(shape.vocabulary, shape.hidden, shape.hidden**-0.5),
        "model.norm.weight": torch.ones(shape.hidden),
    }
    for layer in range(shape.layers):
        prefix = f"model.layers.{layer}"
        weights |= {
            f"{prefix}.input_layernorm.weight": torch.ones(shape.hidden),
            f"{prefix}.self_attn.q_proj.weight": normal(queries, shape.hidden, inward),
            f"{prefix}.self_attn.k_proj.weight": normal(keys, shape.hidden, inward),
            f"{prefix}.self_attn.v_proj.weight": normal(keys, shape.hidden, inward),
            f"{prefix}.self_attn.o_proj.weight": normal(shape.hidden, queries, outward * queries**-0.5),
            f"{prefix}.self_attn.q_norm.weight": torch.full((shape.head_dim,), 1.2),
            f"{prefix}.self_attn.k_norm.weight": torch.full((shape.head_dim,), 1.2),
            f"{prefix}.post_attention_layernorm.weight": torch.ones(shape.hidden),
            f"{prefix}.mlp.gate_proj.weight": normal(shape.feed_forward, shape.hidden, inward),
            f"{prefix}.mlp.up_proj.weight": normal(shape.feed_forward, shape.hidden, inward),
            f"{prefix}.mlp.down_proj.weight": normal(
                shape.hidden, shape.feed_forward, outward * shape.feed_forward**-0.5
            ),
        }
    return weights


def rotation(shape: Shape, tokens: int, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """Cosines and sines, each [tokens, head_dim / 2]."""
    exponents = torch.arange(0, shape.head_dim, 2, dtype=torch.float32) / shape.head_dim
    angles = torch.outer(torch.arange(tokens, dtype=torch.float32), shape.rope_base**-exponents)
    return angles.cos().to(dtype), angles.sin().to(dtype)


def attended(queries: Tensor, keys: Tensor, values: Tensor) -> Tensor:
    """Causal attention, [rows, heads, tokens, head_dim]. Up to 256 tokens, matrix products with all scores in
    memory are twice as fast as PyTorch's tiled kernel on a CPU; beyond, half as fast."""
    tokens = queries.shape[2]
    if tokens > 256:
        return functional.scaled_dot_product_attention(queries, keys, values, is_causal=True)
    scores = (queries * queries.shape[-1] ** -0.5) @ keys.mT
    past = torch.ones(tokens, tokens, dtype=torch.bool).tril()
    return torch.softmax(scores.masked_fill(~past, float("-inf")).float(), -1).to(values.dtype) @ values


def hidden_states(weights: Weights, shape: Shape, ids: Tensor, cosines: Tensor, sines: Tensor) -> Tensor:
    """[rows, tokens] of ids to [rows, tokens, hidden], after the last norm, in the dtype of `cosines`."""
    dtype = cosines.dtype
    rows, tokens = ids.shape

    def linear(values: Tensor, name: str) -> Tensor:
        return functional.linear(values, weights[name].to(dtype))

    def norm(values: Tensor, name: str) -> Tensor:
        wide = values.float()
        scaled = wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + shape.norm_epsilon)
        return (scaled * weights[name]).to(dtype)

    def heads(values: Tensor, count: int) -> Tensor:
        return values.view(rows, tokens, count, shape.head_dim)

    def rotated(values: Tensor) -> Tensor:
        first, second = values.chunk(2, dim=-1)
        cosine, sine = cosines[:, None], sines[:, None]
        turned = (first * cosine - second * sine, second * cosine + first * sine)
        return torch.cat(turned, dim=-1).transpose(1, 2)

    stream = functional.embedding(ids, weights["model.embed_tokens.weight"])
    for layer in range(shape.layers):
        prefix = f"model.layers.{layer}"
        seen = norm(stream, f"{prefix}.input_layernorm.weight")
        attention = f"{prefix}.self_attn"
        queries = heads(linear(seen, f"{attention}.q_proj.weight"), shape.heads)
        keys = heads(linear(seen, f"{attention}.k_proj.weight"), shape.kv_heads)
        values = heads(linear(seen, f"{attention}.v_proj.weight"), shape.kv_heads).transpose(1, 2)
        share = shape.heads // shape.kv_heads
        found = attended(
            rotated(norm(queries, f"{attention}.q_norm.weight")),
            rotated(norm(keys, f"{attention}.k_norm.weight")).repeat_interleave(share, 1),
            values.repeat_interleave(share, 1),
        )
        joined = found.transpose(1, 2).reshape(rows, tokens, shape.heads * shape.head_dim)
        stream = stream + linear(joined, f"{attention}.o_proj.weight")
        seen = norm(stream, f"{prefix}.post_attention_layernorm.weight")
        gate = functional.silu(linear(seen, f"{prefix}.mlp.gate_proj.weight"))
        stream = stream + linear(
            gate * linear(seen, f"{prefix}.mlp.up_proj.weight"), f"{prefix}.mlp.down_proj.weight"
        )
    return norm(stream, "model.norm.weight")
