"""Whether mlx-lm has code for a type of model, without importing it: its modules import MLX."""

from __future__ import annotations

import ast
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path

from scheduler.errors import StartupError


def check(model_type: str) -> None:
    """Raise StartupError for the `model_type` of a `config.json` that the installed mlx-lm does not know.

    Nothing is raised where mlx-lm cannot be found; the engine then reports what is wrong.
    """
    if (folder := _package_folder()) is None:
        return
    if not model_type:
        raise StartupError("--model: config.json names no model_type: download the model again")
    name = _renamed(folder).get(model_type, model_type)
    if not (name.isidentifier() and (folder / "models" / f"{name}.py").exists()):
        raise StartupError(
            f"--model: mlx-lm {version('mlx-lm')} has no model of type {model_type!r}:"
            " upgrade mlx-lm, or serve another model"
        )


def _package_folder() -> Path | None:
    spec = find_spec("mlx_lm")
    locations = None if spec is None else spec.submodule_search_locations
    return Path(locations[0]) if locations else None


def _renamed(folder: Path) -> dict[str, str]:
    """Return mlx-lm's MODEL_REMAPPING: types that share another type's code."""
    for statement in ast.parse((folder / "utils.py").read_text("utf-8")).body:
        match statement:
            case ast.Assign(targets=[ast.Name(id="MODEL_REMAPPING")], value=ast.Dict() as table):
                renamed: dict[str, str] = ast.literal_eval(table)
                return renamed
            case _:
                pass
    return {}
