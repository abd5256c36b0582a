"""`penstock models`: the models on this machine, two lines each."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator
from pathlib import Path

import click

from api.cli.models import disk_models
from api.cli.models.disk_models import DiskModel
from api.cli.models.reading import ModelsReading, PlannedModel, folders_option, read
from scheduler.shared.gigabytes import gigabytes

_COLUMNS = "  {:>7}  {:<24} {:<9} {:>9}  {}"
_WIDTH = 78


@click.command("models")
@folders_option
def models(folders: tuple[Path, ...]) -> None:
    """List the models on this machine: of the Hugging Face hub's cache, and of folders."""
    for line in lines(read(disk_models.find(folders))):
        click.echo(line)


def lines(reading: ModelsReading) -> Iterator[str]:
    """Return the listing for a terminal of 80 columns."""
    heads = ("size", "type", "weights", "context", "memory")
    yield click.style(_COLUMNS.format(*heads).rstrip(), dim=True)
    for one in reading.models:
        yield from _lines_of(one)
    whole = sum(one.model.disk_bytes + one.model.partial_bytes for one in reading.models)
    yield f"\n{len(reading.models)} on disk, {gigabytes(whole)}{_memory(reading)}"


def _lines_of(one: PlannedModel) -> Iterator[str]:
    model = one.model
    yield click.style(model.name, bold=True) + (f"  {model.task}" if model.task != "chat" else "")
    if model.is_model:
        facts = (
            gigabytes(model.disk_bytes),
            model.model_type,
            weights_text(model),
            f"{model.context_tokens:,}",
            _fits(one),
        )
        yield _COLUMNS.format(*facts).rstrip()
    else:
        size = f"{gigabytes(model.disk_bytes)}, " if model.disk_bytes else ""
        text = f"{size}cannot be served: {model.reason}"
        yield textwrap.fill(text, _WIDTH, initial_indent="  ", subsequent_indent="  ")
    if model.partial_bytes:
        yield f"  {gigabytes(model.partial_bytes)} of a download that was cut: `penstock pull` goes on"


def weights_text(model: DiskModel) -> str:
    """Return how the weights are stored: `4-bit`, `bfloat16`."""
    return model.quantization or model.dtype


def _fits(one: PlannedModel) -> str:
    if one.plan is None:
        return "unknown"
    return "fits" if one.plan.fits else click.style("too large", fg="red")


def _memory(reading: ModelsReading) -> str:
    if reading.machine is None:
        return f"\nwhether they fit is not known: {reading.reason}"
    device = "processors" if reading.machine.kind == "cpu" else reading.machine.device
    limits = [one.plan.limit_bytes for one in reading.models if one.plan is not None]
    limit = f"; an engine may use {gigabytes(max(limits))} (--memory-limit)" if any(limits) else ""
    return f"\nthis machine: {device}, {gigabytes(reading.machine.machine_bytes)}{limit}"
