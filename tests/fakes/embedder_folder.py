"""A tiny Qwen3 in a folder as sentence-transformers writes them: an embedder or a reranker."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import load_file, save_file

from scheduler.models.random_qwen3 import TOKENIZER_FOLDER, Shape, write_model

SHAPE = Shape(hidden=32, layers=2, heads=2, kv_heads=1, head_dim=16, feed_forward=64, vocabulary=512, seed=1)
_END = "<|endoftext|>"
_TYPES = "sentence_transformers.models."
POOLING_MODES = {"last": "pooling_mode_lasttoken", "mean": "pooling_mode_mean_tokens"}
END = 8183
"""`<|endoftext|>`, which `write_ending_tokenizer` puts behind each text."""


def write_embedder(
    folder: Path,
    tokens: str = "last",
    *,
    shape: Shape = SHAPE,
    normalize: bool = True,
    dense: int = 0,
    bare: bool = True,
    **config: Any,
) -> Path:
    """`dense`: numbers of a vector behind a linear layer; 0: there is none. `bare`: the tensors' names lack
    the body's prefix, as Qwen3-Embedding's do. `config`: more of config.json."""
    write_model(shape, folder)
    _merge(folder / "config.json", config)
    modules = [("", "Transformer"), ("1_Pooling", "Pooling")]
    _write(folder / "1_Pooling" / "config.json", {"word_embedding_dimension": shape.hidden} | modes(tokens))
    if dense:
        modules.append(("2_Dense", "Dense"))
        layer = {"in_features": shape.hidden, "out_features": dense, "bias": False}
        _write(
            folder / "2_Dense" / "config.json",
            {**layer, "activation_function": "torch.nn.modules.linear.Identity"},
        )
        weight = np.random.default_rng(5).standard_normal((dense, shape.hidden), np.float32)
        save_file({"linear.weight": weight}, folder / "2_Dense" / "model.safetensors")
    if normalize:
        modules.append(("3_Normalize", "Normalize"))
    write_modules(folder, modules)
    if bare:
        weights = load_file(folder / "model.safetensors")
        renamed = {name.removeprefix("model."): array for name, array in weights.items()}
        save_file(renamed, folder / "model.safetensors", metadata={"format": "pt"})
    return folder


def write_reranker(
    folder: Path, true_token: int = 7, false_token: int | None = 3, shape: Shape = SHAPE
) -> Path:
    """As Qwen3-Reranker and zerank-2 are written by sentence-transformers 5.4."""
    write_model(shape, folder)
    score = {"true_token_id": true_token, "false_token_id": false_token}
    _write(folder / "1_LogitScore" / "config.json", score)
    types = "sentence_transformers.cross_encoder.modules.logit_score."
    write_modules(folder, [("", "Transformer"), ("1_LogitScore", "LogitScore")], types)
    return folder


def write_ending_tokenizer(folder: Path) -> Path:
    """Let the tokenizer put an end token behind each text, as Qwen3-Embedding's does."""
    tokenizer = json.loads((TOKENIZER_FOLDER / "tokenizer.json").read_text())
    tokenizer["post_processor"] = {
        "type": "TemplateProcessing",
        "single": [{"Sequence": {"id": "A", "type_id": 0}}, {"SpecialToken": {"id": _END, "type_id": 0}}],
        "pair": [{"Sequence": {"id": "A", "type_id": 0}}, {"Sequence": {"id": "B", "type_id": 1}}],
        "special_tokens": {_END: {"id": _END, "ids": [END], "tokens": [_END]}},
    }
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer))
    _write(folder / "tokenizer_config.json", {"tokenizer_class": "PreTrainedTokenizerFast"})
    return folder


def modes(tokens: str) -> dict[str, bool]:
    """The switches of 1_Pooling/config.json."""
    switch = POOLING_MODES.get(tokens, tokens)
    known = ("cls_token", "mean_tokens", "max_tokens", "mean_sqrt_len_tokens", "lasttoken")
    return {name: name == switch for name in [f"pooling_mode_{each}" for each in known]}


def write_modules(folder: Path, modules: list[tuple[str, str]], types: str = _TYPES) -> None:
    """`modules`: path and type of each."""
    entries = [
        {"idx": at, "name": str(at), "path": path, "type": types + kind}
        for at, (path, kind) in enumerate(modules)
    ]
    (folder / "modules.json").write_text(json.dumps(entries))


def _write(path: Path, content: dict[str, Any]) -> None:
    path.parent.mkdir(exist_ok=True)
    path.write_text(json.dumps(content))


def _merge(path: Path, more: dict[str, Any]) -> None:
    path.write_text(json.dumps(json.loads(path.read_text()) | more))
