"""`penstock rm MODEL`: delete a model from the hub's cache, or smollm2."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import click

from api.cli.errors import OperatorError
from api.cli.models import disk_models
from api.cli.models.disk_models import DiskModel
from api.cli.models.reading import find_one
from scheduler.shared.gigabytes import gigabytes


@dataclass(frozen=True, slots=True)
class Removal:
    """Files and folders to delete, and the bytes that this frees."""

    paths: tuple[Path, ...]
    freed_bytes: int


@click.command()
@click.argument("model")
@click.option("--yes", is_flag=True, help="Do not ask.")
def rm(model: str, yes: bool) -> None:
    """Delete a model: one in the Hugging Face hub's cache, or smollm2.

    MODEL is a name that `penstock models` lists; ID is all revisions of it, ID@REVISION one of them.
    """
    found = find_one(model)
    removal = plan_removal(found, disk_models.hub_cache())
    if not yes:
        if not _is_terminal():
            raise OperatorError("nobody can be asked here: give --yes to delete")
        click.confirm(f"Delete {found.name} and free {gigabytes(removal.freed_bytes)}?", abort=True)
    remove(removal)
    click.echo(f"deleted {found.name}: {gigabytes(removal.freed_bytes)} freed")


def _is_terminal() -> bool:
    return sys.stdin.isatty()


def plan_removal(model: DiskModel, cache: Path) -> Removal:
    """Return what to delete for this model, without blobs that another revision uses. Raise OperatorError if
    it does not lie in `cache`."""
    folder = Path(os.path.abspath(model.folder))
    if model.source == "embedded":
        raise OperatorError("the embedded model is a part of the program, and stays")
    if model.source == "own":
        return Removal((folder,), _freed([folder]))
    if model.source == "folder":
        raise OperatorError(f"{folder} is not in the hub's cache: delete it yourself")
    repository = folder if folder.name.startswith("models--") else folder.parents[1]
    if repository.parent != Path(os.path.abspath(cache)) or repository.is_symlink():
        raise OperatorError(f"{repository} is not a folder of the hub's cache: delete it yourself")
    if "@" not in model.name:
        return Removal((repository, cache / ".locks" / repository.name), _freed([repository]))
    others = [path for path in (repository / "snapshots").iterdir() if path != folder]
    kept = {blob for other in others for blob in _blobs(other)}
    blobs = [blob for blob in _blobs(folder) if blob not in kept and repository in blob.parents]
    references = [path for path in (repository / "refs").rglob("*") if _refers(path, folder.name)]
    return Removal((*references, folder, *blobs), _freed([folder, *blobs]))


def remove(removal: Removal) -> None:
    """Delete it. Raise OperatorError at the first path that cannot be deleted."""
    for path in removal.paths:
        try:
            if path.is_dir() and not path.is_symlink():
                shutil.rmtree(path)
            else:
                path.unlink(missing_ok=True)
        except OSError as error:
            raise OperatorError(f"{error.filename or path} cannot be deleted: {error.strerror}") from error


def _blobs(snapshot: Path) -> list[Path]:
    """Return the files that a snapshot's links lead to."""
    links = [path for path in snapshot.rglob("*") if path.is_symlink()]
    return sorted({Path(os.path.normpath(link.parent / link.readlink())) for link in links})


def _refers(path: Path, commit: str) -> bool:
    with suppress(OSError, ValueError):
        return path.is_file() and path.read_text("utf-8").strip() == commit
    return False


def _freed(paths: Sequence[Path]) -> int:
    """Return the bytes of the files at or below the paths, without following links."""
    return sum(
        file.lstat().st_size
        for path in paths
        for file in ([path] if path.is_file() else path.rglob("*"))
        if file.is_file() and not file.is_symlink()
    )
