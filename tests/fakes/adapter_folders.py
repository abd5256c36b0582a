"""Folders of LoRA adapters for engines without a model, which read the configuration only."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any


def adapter_folder(folder: Path, contents: bytes = b"factors", **changes: Any) -> Path:
    """`changes`: of the configuration."""
    folder.mkdir(parents=True, exist_ok=True)
    config = {
        "fine_tune_type": "lora",
        "num_layers": 4,
        "lora_parameters": {"rank": 4, "scale": 2.0, "dropout": 0.0},
    } | changes
    (folder / "adapter_config.json").write_text(json.dumps(config))
    (folder / "adapters.safetensors").write_bytes(contents)
    return folder
