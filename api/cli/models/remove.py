"""`penstock rm MODEL`: delete a model from the hub's cache, or smollm2."""

from __future__ import annotations

import os
import shutil
import sys
from pathlib import Path

import click

from api.cli.errors import OperatorError
from api.cli.models import disk_models
from api.cli.models.disk_models import DiskModel
from api.cli.models.reading import find_one
from scheduler.shared.gigabytes import gigabytes


@click.command()
@click.argument("model")
@click.option("--yes", is_flag=True, help="Do not ask.")
def rm(model: str, yes: bool) -> None:
    """Delete a model: one in the Hugging Face hub's cache, or smollm2.

    MODEL is a name that `penstock models` lists; ID is all revisions of it, ID@REVISION one of them.
    """
    found = find_one(model)
    where = _place(found, disk_models.hub_cache())
    # Imported here: it takes a second, and wrong arguments do not need it.
    from huggingface_hub import scan_cache_dir

    freed = _bytes_below(where)
    revision = None
    if "@" in found.name:
        revision = scan_cache_dir(disk_models.hub_cache()).delete_revisions(found.revision)
        freed = revision.expected_freed_size
    if not yes:
        if not _is_terminal():
            raise OperatorError("nobody can be asked here: give --yes to delete")
        click.confirm(f"Delete {found.name} and free {gigabytes(freed)}?", abort=True)
    try:
        if revision is None:
            shutil.rmtree(where)
        else:
            revision.execute()
    except OSError as error:
        raise OperatorError(f"{error.filename or where} cannot be deleted: {error.strerror}") from error
    click.echo(f"deleted {found.name}: {gigabytes(freed)} freed")


def _is_terminal() -> bool:
    return sys.stdin.isatty()


def _place(model: DiskModel, cache: Path) -> Path:
    """Return the model's folder, of the hub's cache its repository. Raise OperatorError if it is neither in
    `cache` nor smollm2."""
    folder = Path(os.path.abspath(model.folder))
    if model.source == "embedded":
        raise OperatorError("the embedded model is a part of the program, and stays")
    if model.source == "own":
        return folder
    repository = folder if folder.name.startswith("models--") else folder.parents[1]
    if (
        model.source == "folder"
        or repository.parent != Path(os.path.abspath(cache))
        or repository.is_symlink()
    ):
        raise OperatorError(f"{folder} is not in the hub's cache: delete it yourself")
    return repository


def _bytes_below(folder: Path) -> int:
    """Return the bytes of the files, without following links."""
    files = (path for path in folder.rglob("*") if path.is_file() and not path.is_symlink())
    return sum(path.lstat().st_size for path in files)
