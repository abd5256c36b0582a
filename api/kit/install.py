#!/usr/bin/env python3
"""`python3 install.py ENVIRONMENT [PIECE ...]`: install the kit beside this file, without a network.

It needs the Python that the kit was made for, with pip in it, and nothing else. It joins and checks the
wheels, makes a virtual environment in the folder ENVIRONMENT, and installs into it. PIECE: folders of the kit
that lie elsewhere; by default those beside this file.

A kit for CUDA without NVIDIA's libraries takes those of the Python that runs this, as PyTorch brings them.
MLX looks for them in `nvidia/` of its own environment, so links to them are made there.
"""

from __future__ import annotations

import hashlib
import importlib.util
import json
import re
import shutil
import subprocess
import sys
import tempfile
import venv
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

SUMS = "SHA256SUMS"
PART = re.compile(r"(?P<wheel>.+\.whl)\.(?P<number>\d+)-of-(?P<count>\d+)")


class Wrong(Exception):
    """Why it cannot be installed, in one line."""


def read_sums(kit: Path) -> dict[str, str]:
    lines = (line.partition("  ") for line in (kit / SUMS).read_text("utf-8").splitlines())
    return {name: digest for digest, _, name in lines}


def checked_files(kit: Path, pieces: Sequence[Path]) -> Iterator[Path]:
    """Yield each wheel or part that SHA256SUMS lists, once it has the sum that it should have."""
    for name, expected in read_sums(kit).items():
        if "/" not in name:
            continue
        piece, _, file = name.partition("/")
        found = [
            place for place in (folder / file for folder in pieces if folder.name == piece) if place.is_file()
        ]
        if not found:
            raise Wrong(f"{name} is missing: bring folder {piece} of the kit, too")
        with found[0].open("rb") as opened:
            if hashlib.file_digest(opened, "sha256").hexdigest() != expected:
                raise Wrong(f"{found[0]} is damaged: its SHA-256 is not the one in {SUMS}; copy it again")
        yield found[0]


def joined(files: Iterable[Path], folder: Path) -> list[Path]:
    """Return the wheels; those that come in parts are written into `folder`."""
    wheels: list[Path] = []
    parts: dict[str, dict[int, Path]] = {}
    for file in files:
        if match := PART.fullmatch(file.name):
            parts.setdefault(match["wheel"], {})[int(match["number"])] = file
        else:
            wheels.append(file)
    for name, numbered in parts.items():
        with (folder / name).open("wb") as whole:
            for _, part in sorted(numbered.items()):
                with part.open("rb") as opened:
                    shutil.copyfileobj(opened, whole)
        wheels.append(folder / name)
    return wheels


def library_folders(libmlx: Path) -> list[str]:
    """Return where MLX's library looks for others, as its run path says: folders relative to its own."""
    path = re.search(rb"\$ORIGIN/\.\./\.\./nvidia/[\w./$:-]*", libmlx.read_bytes())
    return re.findall(r"\$ORIGIN/(\.\./\.\./nvidia/[\w./-]+)", path[0].decode()) if path else []


def link_cuda(packages: Path, ours: Sequence[str]) -> list[Path]:
    """Link what `ours`, the folders of a namespace package `nvidia`, have into `packages`, an environment's
    site-packages, unless it has its own."""
    folders = [
        packages / "mlx" / "lib" / folder for folder in library_folders(packages / "mlx/lib/libmlx.so")
    ]
    if not folders or any(folder.is_dir() for folder in folders):
        return []
    (packages / "nvidia").mkdir(exist_ok=True)
    for library in (library for place in ours for library in sorted(Path(place).iterdir())):
        link = packages / "nvidia" / library.name
        if library.is_dir() and library.name != "__pycache__" and not link.exists():
            link.symlink_to(library.resolve())
    linked = [folder for folder in folders if folder.is_dir()]
    if not linked:
        raise Wrong(
            f"{sys.executable} has no CUDA libraries (packages nvidia-*): run this with the Python that has"
            " PyTorch in it, or make the kit with KIT_CUDA=1"
        )
    return linked


def install(kit: Path, environment: Path, pieces: Sequence[Path]) -> None:
    facts = json.loads((kit / "kit.json").read_text("utf-8"))
    if facts["python"] != f"{sys.version_info[0]}.{sys.version_info[1]}":
        raise Wrong(f"the kit is for Python {facts['python']}, and this is {sys.version.split()[0]}")
    if environment.exists() and any(environment.iterdir()):
        raise Wrong(f"{environment} is not empty")
    with tempfile.TemporaryDirectory() as folder:
        wheels = joined(checked_files(kit, pieces), Path(folder))
        venv.create(environment, symlinks=True)
        # pip of this Python installs into the other: the environment needs none, nor what Debian leaves out.
        pip = [sys.executable, "-m", "pip", "--python", str(environment), "--isolated", "--quiet"]
        options = ["--no-index", "--no-deps", "--no-cache-dir", "--disable-pip-version-check"]
        subprocess.run([*pip, "install", *options, *map(str, wheels)], check=True)
    python = environment / "bin" / "python"
    (packages,) = (environment / "lib").glob("python*/site-packages")
    if facts["backend"].startswith("cuda"):
        found = importlib.util.find_spec("nvidia")
        for linked in link_cuda(packages, list((found and found.submodule_search_locations) or [])):
            print(f"CUDA's libraries: {linked.resolve()}")
    tried = subprocess.run([python, "-c", "import mlx.core"], capture_output=True, text=True)
    if tried.returncode:
        raise Wrong(f"installed, but MLX cannot be loaded here: {tried.stderr.strip().splitlines()[-1]}")
    print(f"Penstock {facts['penstock']} ({facts['backend']}): {environment / 'bin' / 'penstock'} serve")


def main() -> None:
    if len(sys.argv) < 2 or sys.argv[1].startswith("-"):
        sys.exit(__doc__)
    kit = Path(__file__).resolve().parent
    pieces = [Path(given).resolve() for given in sys.argv[2:]] or [
        path for path in kit.iterdir() if path.is_dir()
    ]
    try:
        install(kit, Path(sys.argv[1]).absolute(), pieces)
    except (Wrong, OSError) as error:
        sys.exit(f"install.py: {error}")
    except subprocess.CalledProcessError as error:
        sys.exit(f"install.py: pip ended with {error.returncode}")


if __name__ == "__main__":
    main()
