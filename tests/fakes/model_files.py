"""Folders that hold a model of a few kilobytes, and the hub's cache around them, for tests of what reads
them.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import save

from scheduler.models.random_qwen3 import TOKENIZER_FILES, TOKENIZER_FOLDER

COMMIT = "0123456789abcdef0123456789abcdef01234567"

CONFIG: dict[str, Any] = {
    "architectures": ["Qwen3ForCausalLM"],
    "model_type": "qwen3",
    "vocab_size": 8192,
    "max_position_embeddings": 4096,
}


def weights(elements: int = 1024, dtype: str = "float16") -> bytes:
    """Return a safetensors file with one tensor."""
    return save({"model.embed_tokens.weight": np.zeros(elements, dtype=dtype)}, metadata={"format": "pt"})


def model_files(**config: Any) -> dict[str, bytes]:
    """Return the files of a model by name; `config`: what its config.json has beside the usual."""
    return {
        "config.json": json.dumps(CONFIG | config).encode(),
        "model.safetensors": weights(),
        **{name: (TOKENIZER_FOLDER / name).read_bytes() for name in TOKENIZER_FILES},
    }


def write_files(folder: Path, files: dict[str, bytes]) -> Path:
    """Write them, and return the folder."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, content in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(content)
    return folder


def write_repository(
    cache: Path, name: str, files: dict[str, bytes], commit: str = COMMIT, ref: str = "main"
) -> Path:
    """Write a repository of the hub's cache as huggingface_hub does, blobs and links; return its snapshot."""
    repository = cache / f"models--{name.replace('/', '--')}"
    snapshot = repository / "snapshots" / commit
    snapshot.mkdir(parents=True)
    blobs = {f"{commit[:8]}-{file}": content for file, content in files.items()}
    write_files(repository / "blobs", blobs)
    write_files(repository / "refs", {ref: commit.encode()})
    for file in files:
        os.symlink(Path("../../blobs") / f"{commit[:8]}-{file}", snapshot / file)
    return snapshot
