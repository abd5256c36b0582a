"""mlx-lm's converter as a child process: this module, with mlx-lm's arguments.

It reads the folder as an engine does: the same files of weights, and the fields of config.json that mlx-lm's
module needs.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from scheduler.engine.mlx_lm_import import file_limits_kept
from scheduler.shared.folder.reading import read_folder

with file_limits_kept():
    from mlx_lm import utils
    from mlx_lm.convert import main

    from scheduler.engine.mlx.folder_model import read_model


def load_model(model_path: Path, *_: Any, **__: Any) -> tuple[Any, dict[str, Any]]:
    """Return the model and its configuration, in place of mlx-lm's function of this name. The context is the
    longest, for which nothing of the configuration is changed that another one needs."""
    return read_model(model_path, read_folder(model_path).context.most_tokens)


if __name__ == "__main__":
    utils.load_model = load_model
    main()
