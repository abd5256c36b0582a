"""A llama model from a GGUF file as a folder for mlx-lm, the weights as packed as they are:
`python -m scheduler.engine.mlx.gguf_folder FILE FOLDER`, for programs that must not import MLX.

MLX reads Q4_1 and Q8_0 as its own packed arrays, in groups of 32. What differs are names, the order of the
rows of queries and keys (GGUF has the two halves of a head interleaved, for the other kind of rotary
embedding), and that GGUF keeps the tokenizer in its metadata.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import mlx.core as mx

_GROUP: Final = 32
_NAMES: Final = {
    "token_embd": "model.embed_tokens",
    "output_norm": "model.norm",
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
_CONTROL: Final = 3
"""A control token's type in `tokenizer.ggml.token_type`."""


def write_model(file: Path, folder: Path) -> None:
    """Write weights, configuration, tokenizer and chat template into `folder`. Raises ValueError for a file
    of another kind."""
    read: Any = mx.load(str(file), format="gguf", return_metadata=True)
    arrays, metadata = read
    facts = {name: value.item() if _is_number(value) else value for name, value in metadata.items()}
    kind = (facts["general.architecture"], facts["tokenizer.ggml.model"], facts["tokenizer.ggml.pre"])
    if kind != ("llama", "gpt2", "smollm"):
        raise ValueError(f"{file.name} is {kind}, not a llama model with SmolLM's tokenizer")
    weights = _weights(arrays, facts)
    mx.save_safetensors(str(folder / "model.safetensors"), weights, metadata={"format": "mlx"})
    _write_json(folder / "config.json", _config(facts, weights))
    ends = facts["tokenizer.ggml.eos_token_id"]
    generation = {"eos_token_id": ends, "pad_token_id": facts["tokenizer.ggml.padding_token_id"]}
    _write_json(folder / "generation_config.json", generation)
    _write_json(folder / "tokenizer.json", _tokenizer(facts))
    _write_json(folder / "tokenizer_config.json", _tokenizer_config(facts))


def _write_json(path: Path, value: object) -> None:
    path.write_text(json.dumps(value, indent=2) + "\n", encoding="utf-8")


def in_halves(rows: mx.array, heads: int) -> mx.array:
    """Return rows that lie (head, pair, half), as in GGUF, in the order (head, half, pair)."""
    return rows.reshape(heads, -1, 2, rows.shape[-1]).swapaxes(1, 2).reshape(rows.shape)


def _is_number(value: object) -> bool:
    return isinstance(value, mx.array) and value.ndim == 0


def _weights(arrays: Mapping[str, mx.array], facts: Mapping[str, Any]) -> dict[str, mx.array]:
    heads = {
        "attn_q": facts["llama.attention.head_count"],
        "attn_k": facts["llama.attention.head_count_kv"],
    }
    weights = {}
    for name, array in arrays.items():
        *layer, module, part = name.split(".")
        if module in heads:
            array = in_halves(array, heads[module])
        if array.dtype == mx.float32:
            # The norms were trained in 16 bits. In float32 they would make all activations float32.
            narrow = array.astype(mx.float16)
            if not mx.array_equal(narrow.astype(mx.float32), array).item():
                raise ValueError(f"{name} does not fit into float16")
            array = narrow
        prefix = f"model.layers.{layer[1]}." if layer else ""
        weights[f"{prefix}{_NAMES[module]}.{part}"] = array
    return weights


def _config(facts: Mapping[str, Any], weights: Mapping[str, mx.array]) -> dict[str, Any]:
    quantization: dict[str, Any] = {"group_size": _GROUP, "bits": 4, "mode": "affine"}
    for name, scales in weights.items():
        if (layer := name.removesuffix(".scales")) != name:
            bits = 32 * weights[f"{layer}.weight"].shape[-1] // (_GROUP * scales.shape[-1])
            if bits != quantization["bits"]:
                quantization[layer] = {"group_size": _GROUP, "bits": bits}
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "hidden_size": facts["llama.embedding_length"],
        "num_hidden_layers": facts["llama.block_count"],
        "num_attention_heads": facts["llama.attention.head_count"],
        "num_key_value_heads": facts["llama.attention.head_count_kv"],
        "intermediate_size": facts["llama.feed_forward_length"],
        "vocab_size": facts["llama.vocab_size"],
        "max_position_embeddings": facts["llama.context_length"],
        "rope_theta": facts["llama.rope.freq_base"],
        "rms_norm_eps": round(facts["llama.attention.layer_norm_rms_epsilon"], 9),
        "hidden_act": "silu",
        "tie_word_embeddings": True,
        "torch_dtype": "float16",
        "bos_token_id": facts["tokenizer.ggml.bos_token_id"],
        "eos_token_id": facts["tokenizer.ggml.eos_token_id"],
        "pad_token_id": facts["tokenizer.ggml.padding_token_id"],
        "quantization": quantization,
        "quantization_config": quantization,
    }


def _tokenizer(facts: Mapping[str, Any]) -> dict[str, Any]:
    """Byte-level BPE; digits are split one by one, control tokens are matched in the text."""
    tokens = facts["tokenizer.ggml.tokens"]
    control = [at for at, kind in enumerate(facts["tokenizer.ggml.token_type"].tolist()) if kind == _CONTROL]
    plain = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False}
    byte_level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [{"id": at, "content": tokens[at], **plain, "special": True} for at in control],
        "normalizer": None,
        "pre_tokenizer": {
            "type": "Sequence",
            "pretokenizers": [{"type": "Digits", "individual_digits": True}, byte_level],
        },
        "post_processor": None,
        "decoder": byte_level,
        "model": {
            "type": "BPE",
            "dropout": None,
            "unk_token": None,
            "continuing_subword_prefix": None,
            "end_of_word_suffix": None,
            "fuse_unk": False,
            "byte_fallback": False,
            "vocab": {token: at for at, token in enumerate(tokens)},
            "merges": [merge.split(" ") for merge in facts["tokenizer.ggml.merges"]],
        },
    }


def _tokenizer_config(facts: Mapping[str, Any]) -> dict[str, Any]:
    tokens = facts["tokenizer.ggml.tokens"]
    names = {"bos_token": "bos", "eos_token": "eos", "unk_token": "unknown", "pad_token": "padding"}
    return {
        **{field: tokens[facts[f"tokenizer.ggml.{name}_token_id"]] for field, name in names.items()},
        "tokenizer_class": "PreTrainedTokenizerFast",
        "model_max_length": facts["llama.context_length"],
        "clean_up_tokenization_spaces": False,
        "add_bos_token": facts["tokenizer.ggml.add_bos_token"],
        "add_prefix_space": facts["tokenizer.ggml.add_space_prefix"],
        "chat_template": facts["tokenizer.chat_template"],
    }


if __name__ == "__main__":
    write_model(Path(sys.argv[1]), Path(sys.argv[2]))
