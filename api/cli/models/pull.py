"""`penstock pull ID`: a model from the Hugging Face hub into its cache."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import click
import trio
from rich.console import Console
from rich.progress import (
    BarColumn,
    DownloadColumn,
    Progress,
    TaskID,
    TextColumn,
    TimeRemainingColumn,
    TransferSpeedColumn,
)

from api.cli.errors import OperatorError
from api.cli.models import disk_models
from api.cli.models.download import Download, DownloadProgress, Result, gigabytes
from api.cli.models.hub import HubFile, HubListing, list_files
from api.cli.terminal import is_interrupt
from scheduler.errors import StartupError
from scheduler.prompt import model_types
from scheduler.shared.folder.reading import read_json

_LINE_SECONDS = 10.0
_NAME_COLUMNS = 28


class _Lines(DownloadProgress):
    """Progress without a terminal: a line for each large file, and one every ten seconds with the rate since
    the last."""

    def __init__(self, total_bytes: int, say: Callable[[str], None], now: Callable[[], float]) -> None:
        self._say, self._now = say, now
        self._total_bytes, self._had_bytes, self._reported = total_bytes, 0, (now(), 0)

    def begin(self, file: HubFile, have_bytes: int) -> None:
        self._had_bytes += have_bytes
        self._reported = (self._reported[0], self._reported[1] + have_bytes)
        if have_bytes:
            self._say(f"{file.path}: goes on at {gigabytes(have_bytes)} of {gigabytes(file.nbytes)}")

    def advance(self, file: HubFile, nbytes: int) -> None:
        self._had_bytes += nbytes
        at, had_bytes = self._reported
        if (seconds := self._now() - at) >= _LINE_SECONDS:
            rate = max(0, self._had_bytes - had_bytes) / seconds
            done = f"{gigabytes(self._had_bytes)} of {gigabytes(self._total_bytes)}"
            self._say(f"{done}, {gigabytes(int(rate))}/s")
            self._reported = (self._now(), self._had_bytes)

    def done(self, file: HubFile) -> None:
        if file.path.endswith(".safetensors"):
            self._say(f"{file.path}: {gigabytes(file.nbytes)}, checksum right")

    def note(self, text: str) -> None:
        self._say(text)


class _Bars(DownloadProgress):
    """Progress on a terminal: a bar for each file that comes, and one for all of them."""

    def __init__(self, progress: Progress, total_bytes: int) -> None:
        self._progress = progress
        self._all = progress.add_task("all", total=total_bytes)
        self._of: dict[str, TaskID] = {}

    def begin(self, file: HubFile, have_bytes: int) -> None:
        name = file.path if len(file.path) <= _NAME_COLUMNS else f"…{file.path[1 - _NAME_COLUMNS :]}"
        self._of[file.path] = self._progress.add_task(name, total=file.nbytes, completed=have_bytes)
        self._progress.advance(self._all, have_bytes)

    def advance(self, file: HubFile, nbytes: int) -> None:
        self._progress.advance(self._of[file.path], nbytes)
        self._progress.advance(self._all, nbytes)

    def done(self, file: HubFile) -> None:
        self._progress.remove_task(self._of.pop(file.path))

    def note(self, text: str) -> None:
        self._progress.console.print(text, highlight=False)


def _console() -> Console:
    """Return a console whose lines leave room for the terminal's echo of Ctrl-C, which would break them."""
    console = Console(stderr=True)
    console.width = max(20, console.width - 2)
    return console


@contextmanager
def _progress(console: Console, total_bytes: int) -> Iterator[_Lines | _Bars]:
    if not console.is_terminal:
        yield _Lines(total_bytes, lambda text: click.echo(text, err=True), time.monotonic)
        return
    columns = (
        TextColumn("{task.description}"),
        BarColumn(bar_width=None),
        DownloadColumn(),
        TransferSpeedColumn(),
        TimeRemainingColumn(compact=True),
    )
    with Progress(*columns, console=console, transient=True) as progress:
        yield _Bars(progress, total_bytes)


@click.command()
@click.argument("model", metavar="ID")
@click.option("--revision", default="main", show_default=True, help="Branch, tag or commit.")
def pull(model: str, revision: str) -> None:
    """Download a model from the Hugging Face hub, as mlx-community/Qwen3-8B-4bit.

    A download that was cut continues where it stopped. Each file is compared with the hub's checksum.
    HF_TOKEN is sent for gated and private models; HF_HOME and HF_ENDPOINT say where to and where from.
    """
    # Imported here: it takes a second, and wrong arguments do not need it.
    from huggingface_hub import constants, get_token

    listing = list_files(model, revision)
    download = Download(listing, disk_models.hub_cache(), constants.ENDPOINT, get_token())
    download.check_disk()
    _begin(listing, download)
    try:
        with _progress(_console(), listing.nbytes) as download.progress:
            result = trio.run(download.run, _refuse_unknown_type)
    except BaseException as error:
        if is_interrupt(error):
            # Only after the bars are gone, which erase the lines below them, too.
            click.echo("stopped; what came is kept, and the same command goes on from there", err=True)
        raise
    click.echo(_summary(listing, result))


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
