"""`penstock models`: the models on this machine, two lines each."""

from __future__ import annotations

import textwrap

import click

from api.cli.models import disk_models
from scheduler.shared.gigabytes import gigabytes

_COLUMNS = "  {:>7}  {:<24} {:<9} {:>9}"
_WIDTH = 78


@click.command("models")
def models() -> None:
    """List the models on this machine: of the Hugging Face hub's cache, and our own."""
    found = disk_models.find()
    click.secho(_COLUMNS.format("size", "type", "weights", "context"), dim=True)
    for model in found:
        size, inspected = gigabytes(model.disk_bytes), model.inspected
        if inspected is None:
            click.secho(model.name, bold=True)
            text = f"{size}, cannot be served: {model.reason}"
            click.echo(textwrap.fill(text, _WIDTH, initial_indent="  ", subsequent_indent="  "))
        else:
            task = "" if inspected.kind == "chat" else f"  {inspected.kind}"
            click.echo(click.style(model.name, bold=True) + task)
            stored, context = model.quantization or model.dtype, f"{inspected.context_tokens:,}"
            click.echo(_COLUMNS.format(size, inspected.model_type, stored, context))
    click.echo(f"\n{len(found)} on disk, {gigabytes(sum(model.disk_bytes for model in found))}")
