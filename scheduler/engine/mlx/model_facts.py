"""What this machine's device is, and what models would take of its memory: `python -m ... [FOLDER ...]`.

For commands whose process must not import MLX. MLX is lazy, so a model is built, and one token run through
it, without a weight being read: the shapes and types of its parameters and of its cache are known all the
same. Prints one line of JSON for the device, then one for each folder.
"""

from __future__ import annotations

import json
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Any

from scheduler.engine.budget.readings import machine_bytes
from scheduler.engine.mlx.device import device
from scheduler.engine.mlx_lm_import import file_limits_kept, without_tokenizers

with file_limits_kept(), without_tokenizers():
    from scheduler.engine.mlx.loading import unread_bytes


def device_facts() -> dict[str, Any]:
    traits = device().traits
    return {
        "device": device().name,
        "kind": traits.kind,
        "wide_weights": traits.wide_weights,
        "info": device().facts(),
        "machine_bytes": machine_bytes(),
    }


def model_facts(folder: Path) -> dict[str, Any]:
    """Return the bytes of the weights as an engine holds them with `--weights-dtype auto`, and of a row's
    caches, also with `--kv-cache-dtype q8` where that takes less. Raise mlx-lm's error for unknown or
    custom-code models."""
    weights_bytes, row, packed = unread_bytes(folder, "auto")
    q8_row = None if packed is None else asdict(packed)
    return {"weights_bytes": weights_bytes, "row": asdict(row), "q8_row": q8_row}


def main() -> None:
    print(json.dumps(device_facts(), default=str), flush=True)
    for folder in sys.argv[1:]:
        try:
            found = model_facts(Path(folder))
        except Exception as error:  # mlx-lm's models raise whatever a configuration makes of them.
            found = {"error": f"{type(error).__name__}: {error}"}
        print(json.dumps({"folder": folder, **found}), flush=True)


if __name__ == "__main__":
    main()
