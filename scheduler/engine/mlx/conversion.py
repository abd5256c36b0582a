"""mlx-lm's converter as a child process: this module, with mlx-lm's arguments.

It reads the folder as an engine does: the same files of weights, and the fields of config.json that mlx-lm's
module needs.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from scheduler.engine.mlx_lm_import import file_limits_kept
from scheduler.shared.folder.reading import read_folder
from scheduler.shared.folder.rotary import TEXT

with file_limits_kept():
    from mlx_lm import utils
    from mlx_lm.convert import main

    from scheduler.engine.mlx.folder_model import read_model

_SCALING = "rope_scaling"


def load_model(model_path: Path, *_: Any, **__: Any) -> tuple[Any, dict[str, Any]]:
    """Return the model and its configuration, in place of mlx-lm's function of this name. The context is the
    longest, for which nothing of the configuration is changed that another one needs."""
    reading = read_folder(model_path)
    model, config = read_model(model_path, reading.context.most_tokens)
    return model, with_scaling(config, reading.config)


def with_scaling(config: dict[str, Any], own: Mapping[str, Any]) -> dict[str, Any]:
    """Return the configuration that was read, with the scaling of positions that the folder's `own` file has:
    mlx-lm's module may have been built without."""
    if isinstance(text := own.get(TEXT), Mapping):
        config = {**config, TEXT: with_scaling(dict(config.get(TEXT) or {}), text)}
    return {**config, _SCALING: own[_SCALING]} if own.get(_SCALING) else config


if __name__ == "__main__":
    utils.load_model = load_model
    main()
