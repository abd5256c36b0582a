"""Whether an MLX back end is installed, seen without importing it: on Linux an extra chooses one."""

from __future__ import annotations

import sys
from collections.abc import Collection
from importlib.util import find_spec
from pathlib import Path

from api.version import release_of
from scheduler.errors import StartupError

LINUX_BACK_ENDS = ("mlx-cpu", "mlx-cuda-13", "mlx-cuda-12")


def installed_back_ends() -> tuple[str, ...]:
    """Return the packages that bring MLX's compiled library; "mlx" itself for one that was built here."""
    packages = tuple(name for name in (*LINUX_BACK_ENDS, "mlx-metal") if release_of(name))
    if packages:
        return packages
    spec = find_spec("mlx")
    folders = [] if spec is None else list(spec.submodule_search_locations or ())
    return ("mlx",) if any([*Path(folder).glob("lib*/libmlx.*")] for folder in folders) else ()


def missing_back_end(platform: str, back_ends: Collection[str]) -> str:
    """Return in one line what to install, or an empty string if nothing is missing."""
    if back_ends:
        return ""
    if platform == "darwin":
        return "MLX is not installed: pip install mlx (it has wheels for Apple silicon, none for Intel Macs)"
    return (
        "no MLX back end is installed: install 'penstock[cpu]', or 'penstock[cuda13]' for an NVIDIA GPU"
        " (pip install, pipx install --force, or uv tool install --force)"
    )


def check_back_end() -> None:
    """Raise StartupError if no engine could be started on this machine."""
    if missing := missing_back_end(sys.platform, installed_back_ends()):
        raise StartupError(missing)
