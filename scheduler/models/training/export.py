"""Checkpoint to folder: `python -m scheduler.models.training.export TRAINING_FOLDER [MODEL_FOLDER]`.

Weights are written in bfloat16, in which the network computed while it was trained.
"""

from __future__ import annotations

import argparse
import json
import shutil
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from tokenizers import Tokenizer

from scheduler.models.embedded_model import EMBEDDED_FOLDER
from scheduler.models.training.network import Shape

TRAINED_TOKENS = 2048
LONG_CONTEXT = {
    "max_position_embeddings": 131072,
    "rope_scaling": {
        "rope_type": "yarn",
        "factor": 131072 / TRAINED_TOKENS,
        "original_max_position_embeddings": TRAINED_TOKENS,
        "beta_fast": 4.0,
        "beta_slow": 1.0,
        # Both: attention is not sharpened.
        "mscale": 1.0,
        "mscale_all_dim": 1.0,
    },
}
"""What the folder says beyond the network that was trained: without interpolated positions (YaRN) it finds
little in prompts of three times the longest row that it saw. No weight changes. Frequencies that turn four
times within that row stay as they are: with the usual 32, or with sharpened attention, one short question in
twenty goes wrong that was right before."""


def export(trained: Path, folder: Path, shape: Shape) -> None:
    """Write the folder, with a copy of the log, which documents how its weights came to be."""
    folder.mkdir(parents=True, exist_ok=True)
    for name in ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja"):
        if folder.resolve() != EMBEDDED_FOLDER.resolve():
            shutil.copyfile(EMBEDDED_FOLDER / name, folder / name)
    weights = torch.load(trained / "checkpoint.pt")["weights"]
    packed = {name: tensor.to(torch.bfloat16).contiguous() for name, tensor in weights.items()}
    save_file(packed, folder / "model.safetensors", metadata={"format": "pt"})
    (folder / "model.safetensors").chmod(0o644)  # safetensors lets nobody else read what it writes
    tokens: dict[str, int] = Tokenizer.from_file(str(folder / "tokenizer.json")).get_vocab()
    ends = {"eos_token_id": tokens["<|im_end|>"], "pad_token_id": tokens["<|endoftext|>"]}
    _write_json(folder / "config.json", shape.config() | LONG_CONTEXT | ends)
    _write_json(folder / "generation_config.json", {"do_sample": False, **ends})
    shutil.copyfile(trained / "log.jsonl", folder / "training.jsonl")


def _write_json(path: Path, value: dict[str, Any]) -> None:
    path.write_text(json.dumps(value, indent=2) + "\n", encoding="utf-8")


def main() -> None:
    parser = argparse.ArgumentParser(description="Write a checkpoint as a model folder.")
    parser.add_argument("trained", type=Path)
    parser.add_argument("folder", type=Path, nargs="?", default=EMBEDDED_FOLDER)
    arguments = parser.parse_args()
    export(arguments.trained, arguments.folder, Shape())


if __name__ == "__main__":
    main()
