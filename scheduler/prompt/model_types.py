"""Whether mlx-lm has code for a type of model, without importing it: its modules import MLX."""

from __future__ import annotations

from importlib.metadata import version

from scheduler.errors import StartupError
from scheduler.shared.folder.mlx_lm_module import module_of, package_folder


def check(model_type: str) -> None:
    """Raise StartupError for the `model_type` of a `config.json` that the installed mlx-lm does not know.

    Nothing is raised where mlx-lm cannot be found; the engine then reports what is wrong.
    """
    if package_folder() is None:
        return
    if not model_type:
        raise StartupError("--model: config.json names no model_type: download the model again")
    if module_of(model_type) is None:
        raise StartupError(
            f"--model: mlx-lm {version('mlx-lm')} has no model of type {model_type!r}:"
            " upgrade mlx-lm, or serve another model"
        )
