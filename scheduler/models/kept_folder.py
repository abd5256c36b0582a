"""A made model's folder: whole or not there at all, made once, known by what it was made from."""

from __future__ import annotations

import fcntl
import json
import shutil
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Final

MANIFEST: Final = "penstock.json"
"""Written last: the digest of the folder's inputs, and the size of every file in it."""

Fill = Callable[[Path], Mapping[str, object]]
"""Writes the files into an empty folder. Returns what the manifest says beside digest and sizes."""


def kept_folder(cache_folder: Path, name: str, digest: str) -> Path:
    """Return where the cache has the folder with this name and digest, whole or not."""
    return cache_folder / f"{name}-{digest[:16]}"


def ensure_folder(folder: Path, digest: str, fill: Fill) -> None:
    """Make the folder if it does not exist or is incomplete.

    Any number of processes may ask at once; one makes it, under a lock that the system releases when its
    holder dies. Raise OSError if it cannot be written, and whatever `fill` raises.
    """
    if is_whole(folder, digest):
        return
    folder.parent.mkdir(parents=True, exist_ok=True)
    with _locked(folder.parent / f".{folder.name}.lock"):
        if is_whole(folder, digest):
            return
        partial = folder.parent / f".{folder.name}.partial"
        for leftover in (folder, partial):
            if leftover.exists():
                shutil.rmtree(leftover)
        partial.mkdir()
        try:
            facts = fill(partial)
            sizes = {path.name: path.stat().st_size for path in sorted(partial.iterdir())}
            write_json(partial / MANIFEST, {"digest": digest, **facts, "file_bytes": sizes})
            partial.rename(folder)
        finally:
            shutil.rmtree(partial, ignore_errors=True)


def is_whole(folder: Path, digest: str) -> bool:
    """Return whether every file exists in its size: cleaners of temporary folders delete single files."""
    try:
        manifest = json.loads((folder / MANIFEST).read_text(encoding="utf-8"))
        sizes: dict[str, int] = manifest["file_bytes"]
        sizes_now = {name: (folder / name).stat().st_size for name in sizes}
        return bool(manifest["digest"] == digest and sizes_now == sizes)
    except (OSError, ValueError, KeyError, TypeError):
        return False


def write_json(path: Path, value: object) -> None:
    path.write_text(json.dumps(value, indent=2) + "\n", encoding="utf-8")


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    with path.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield
