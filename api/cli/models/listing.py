"""`penstock models`: the models on this machine, two lines each, or JSON."""

from __future__ import annotations

import json
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click

from api.cli.models import disk_models
from api.cli.models.disk_models import DiskModel
from api.cli.models.reading import ModelsReading, PlannedModel, folders_option, read
from scheduler.shared.gigabytes import gigabytes

_COLUMNS = "  {:>7}  {:<13} {:<9} {:>8}  {:<24} {}"
_WIDTH = 78


@click.command("models")
@folders_option
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def models(folders: tuple[Path, ...], as_json: bool) -> None:
    """List the models on this machine: of the Hugging Face hub's cache, and of folders."""
    reading = read(disk_models.find(folders, dialects=False))
    if as_json:
        click.echo(json.dumps(listed(reading), indent=2))
        return
    for line in lines(reading):
        click.echo(line)


def listed(reading: ModelsReading) -> dict[str, Any]:
    """Return the listing as a JSON object."""
    device: dict[str, Any] = {"device": None, "reason": reading.reason}
    if (found := reading.machine) is not None:
        device = {"device": found.device, "kind": found.kind, "memory_bytes": found.machine_bytes}
    return {"machine": device, "models": [one.as_json() for one in reading.models]}


def lines(reading: ModelsReading) -> Iterator[str]:
    """Return the listing for a terminal of 80 columns."""
    heads = ("size", "type", "weights", "context", "tools, reasoning", "memory")
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
            dialects_text(model),
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
    return model.dtype if model.quantization is None else str(model.quantization)


def dialects_text(model: DiskModel) -> str:
    if not model.chat_template:
        return "no chat template"
    return f"{model.tool_dialect}, {model.reasoning_dialect}"


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
