"""Qwen3 models with random weights: a tiny one for tests, and the bench model that issues call "13M".

This module owns the shapes, the weights and the folders of the models. It knows nothing of MLX, so the server
and its tests may use it.

The weights mean nothing, but answers must vary. With tied embeddings and the usual small initial values a
greedy answer repeats its last token forever, and a test that compares such answers passes whatever the cache
holds. See the constants below.
"""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt
from safetensors.numpy import save

from scheduler.models.kept_folder import ensure_folder, kept_folder, write_json

Weights = dict[str, npt.NDArray[np.float32]]

TOKENIZER_FOLDER: Final = Path(__file__).parent / "tokenizer"
TOKENIZER_FILES: Final = ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja")
PAD_TOKEN_ID: Final = 8183
EOS_TOKEN_ID: Final = 8185
FIRST_ADDED_TOKEN_ID: Final = 8183

FORMAT_VERSION: Final = 1
"""Raise it with any change to the files or the weights: old cached folders are then ignored."""

_EMBEDDING_SCALE = 0.05
"""Small against the blocks' output: with tied embeddings, a token's remaining embedding votes for the token
itself."""

_ATTENTION_SCALE = 1.5
"""The scale of attention's output; in the first layer, times that of the embedding. With more, after a long
prompt the average of the context outweighs the current token: answers to 800 tokens fell into loops of a few
tokens."""

_FEED_FORWARD_SCALE = 3.0
_FOCUS = 1.8
"""The scale of query and key norms. Scores deviate by its square, so attention selects some tokens, not their
average; at 1.5, with attention at 1.0, a word changed early in 3600 tokens left the answer unchanged."""

_LOGIT_DEVIATION = 3.0
"""The best token then has a probability near 0.15, and leads by 0.5 in the median, by 0.01 in 99 of 100."""

_ADDED_TOKEN_SCALE = 0.02
"""End-of-turn, <think> and <tool_call> must not occur by chance: their logits are close to zero."""


@dataclass(frozen=True, slots=True)
class Shape:
    """The sizes of one Qwen3 model, and the seed of its weights: equal shapes give equal models."""

    hidden: int
    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    feed_forward: int
    vocabulary: int = 8192
    context: int = 40960
    seed: int = 0

    @property
    def kv_bytes_per_token(self) -> int:
        """Return the bytes of keys and values of one token in all layers, in float32."""
        return 2 * 4 * self.layers * self.kv_heads * self.head_dim


TINY: Final = Shape(hidden=64, layers=2, heads=4, kv_heads=2, head_dim=32, feed_forward=192, seed=20)
BENCH_13M: Final = Shape(hidden=384, layers=6, heads=6, kv_heads=2, head_dim=64, feed_forward=1152, seed=13)


def ensure_model(shape: Shape, name: str, cache_folder: Path) -> Path:
    """Return the folder of this model in the cache; make it if it does not exist or is incomplete.
    Raise OSError if the cache cannot be written."""
    digest = model_digest(shape)
    folder = kept_folder(cache_folder, name, digest)
    ensure_folder(folder, digest, partial(_write_files, shape))
    return folder


def write_model(shape: Shape, folder: Path) -> None:
    """Write the model's files into a folder."""
    folder.mkdir(parents=True, exist_ok=True)
    _write_files(shape, folder)


def model_digest(shape: Shape) -> str:
    """Return a digest that changes with anything that changes a file of the model."""
    digest = hashlib.sha256(json.dumps([FORMAT_VERSION, asdict(shape)], sort_keys=True).encode())
    for name in TOKENIZER_FILES:
        digest.update((TOKENIZER_FOLDER / name).read_bytes())
    return digest.hexdigest()


def random_weights(shape: Shape) -> Weights:
    """Return the model's tensors under their Hugging Face names; the same bits on every platform.

    They come from PCG64's raw integers by one exact conversion and one multiplication. NumPy's own
    distributions do not guarantee that: they call the platform's `log` and may change by release.
    """
    bits = np.random.PCG64(shape.seed)

    def uniform(rows: int, columns: int, deviation: float) -> npt.NDArray[np.float32]:
        integers = (bits.random_raw(rows * columns) >> np.uint64(40)).astype(np.int32) - (1 << 23)
        half_width = np.float32(deviation * 3**0.5)
        return (integers.astype(np.float32) * np.float32(2.0**-23) * half_width).reshape(rows, columns)

    weights: Weights = {}
    for name, size, value in layout(shape):
        match size:
            case (rows, columns):
                weights[name] = uniform(rows, columns, value)
            case (count,):
                weights[name] = np.full(count, value, dtype=np.float32)
    weights["model.embed_tokens.weight"][FIRST_ADDED_TOKEN_ID:] *= np.float32(_ADDED_TOKEN_SCALE)
    return weights


def layout(shape: Shape, tied: bool = True) -> Iterator[tuple[str, tuple[int] | tuple[int, int], float]]:
    """Yield name and size of each tensor, the values of a vector, and the standard deviation of a matrix.
    `tied`: whether the embedding is the output layer, too."""
    queries, keys = shape.heads * shape.head_dim, shape.kv_heads * shape.head_dim
    inward, of_hidden = shape.feed_forward**-0.5, shape.hidden**-0.5
    last_norm = _LOGIT_DEVIATION / (_EMBEDDING_SCALE * shape.hidden**0.5)
    yield "model.embed_tokens.weight", (shape.vocabulary, shape.hidden), _EMBEDDING_SCALE
    yield "model.norm.weight", (shape.hidden,), last_norm
    for layer in range(shape.layers):
        prefix = f"model.layers.{layer}"
        attention = _ATTENTION_SCALE * (_EMBEDDING_SCALE if layer == 0 else 1.0)
        yield f"{prefix}.input_layernorm.weight", (shape.hidden,), 1.0
        yield f"{prefix}.self_attn.q_proj.weight", (queries, shape.hidden), of_hidden
        yield f"{prefix}.self_attn.k_proj.weight", (keys, shape.hidden), of_hidden
        yield f"{prefix}.self_attn.v_proj.weight", (keys, shape.hidden), of_hidden
        yield f"{prefix}.self_attn.o_proj.weight", (shape.hidden, queries), attention * queries**-0.5
        yield f"{prefix}.self_attn.q_norm.weight", (shape.head_dim,), _FOCUS
        yield f"{prefix}.self_attn.k_norm.weight", (shape.head_dim,), _FOCUS
        yield f"{prefix}.mlp.gate_proj.weight", (shape.feed_forward, shape.hidden), of_hidden
        yield f"{prefix}.mlp.up_proj.weight", (shape.feed_forward, shape.hidden), of_hidden
        yield (
            f"{prefix}.mlp.down_proj.weight",
            (shape.hidden, shape.feed_forward),
            _FEED_FORWARD_SCALE * inward,
        )
        yield f"{prefix}.post_attention_layernorm.weight", (shape.hidden,), 1.0
    if not tied:
        yield "lm_head.weight", (shape.vocabulary, shape.hidden), _EMBEDDING_SCALE


def _write_files(shape: Shape, folder: Path) -> dict[str, object]:
    for name in TOKENIZER_FILES:
        shutil.copyfile(TOKENIZER_FOLDER / name, folder / name)
    write_json(folder / "config.json", model_config(shape))
    generation = {"do_sample": False, "eos_token_id": EOS_TOKEN_ID, "pad_token_id": PAD_TOKEN_ID}
    write_json(folder / "generation_config.json", generation)
    (folder / "model.safetensors").write_bytes(save(random_weights(shape), metadata={"format": "pt"}))
    return {"shape": asdict(shape)}


def model_config(shape: Shape, tied: bool = True) -> dict[str, Any]:
    return {
        "architectures": ["Qwen3ForCausalLM"],
        "model_type": "qwen3",
        "hidden_size": shape.hidden,
        "num_hidden_layers": shape.layers,
        "num_attention_heads": shape.heads,
        "num_key_value_heads": shape.kv_heads,
        "head_dim": shape.head_dim,
        "intermediate_size": shape.feed_forward,
        "vocab_size": shape.vocabulary,
        "max_position_embeddings": shape.context,
        "rope_theta": 1000000.0,
        "rms_norm_eps": 1e-6,
        "hidden_act": "silu",
        "attention_bias": False,
        "tie_word_embeddings": tied,
        "torch_dtype": "float32",
        "bos_token_id": None,
        "eos_token_id": EOS_TOKEN_ID,
        "pad_token_id": PAD_TOKEN_ID,
    }
