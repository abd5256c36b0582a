"""The Load commands of these tests."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from scheduler.shared.messages import Load, ScriptedPlan


def load_of(folder: Path, **changes: Any) -> Load:
    """Load for this folder: float32, 32 slots and a prefill chunk of 64 if not changed."""
    fields: dict[str, Any] = {
        "backend": "mlx",
        "model_folder": str(folder),
        "max_slots": 32,
        "prefill_chunk_tokens": 64,
        "prefill_rows": 8,
        "weights_dtype": "float32",
        "scripted": ScriptedPlan(),
    }
    return Load(**(fields | changes))
