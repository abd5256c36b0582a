"""`penstock batch`: its options, its progress, and how it ends."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import BinaryIO

import click
import trio
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from api.cli.batch.lines import answers_file, pending
from api.cli.batch.sending import Sending
from api.cli.running_server import address, find, server_options
from api.cli.terminal import exit_code, one_line

_STATE = TextColumn("{task.fields[state]}", markup=False)


@click.command()
@click.argument("source", metavar="IN.jsonl", type=click.File("rb"))
@click.argument("target", metavar="OUT.jsonl", type=click.Path(path_type=Path, dir_okay=False))
@server_options
@click.option("--model", metavar="NAME", help="Model to ask, whatever the requests name.")
def batch(source: BinaryIO, target: Path, url: str | None, api_key: str | None, model: str | None) -> None:
    """Send a file of requests, one a line as OpenAI's batches have them, and write their answers.

    They go as many at once as the server has room for; Penstock serves them behind all others. Ended at any
    moment, the same command goes on where it was: each request is answered once. Refused
    requests have their error in OUT.jsonl, and are not sent again.
    """
    server = find(address(url, api_key, os.environ))
    if model is not None:
        server.model(model)
    with answers_file(target) as (answers, done):
        lines = pending(source, done)
        click.echo(f"{len(lines)} requests to send, {len(done)} answered already", err=True)
        columns = (BarColumn(), MofNCompleteColumn(), TimeRemainingColumn(), _STATE)
        with Progress(*columns, console=Console(stderr=True)) as shown:
            sending = Sending(server, model, source, answers, lambda: shown.advance(bar))
            bar = shown.add_task("", total=len(done) + len(lines), completed=len(done), state=sending)
            trio.run(sending.run, lines)
    answered, served = sending.statuses.total(), sending.statuses[200]
    click.echo(f"{answered} answered, of them {answered - served} refused", err=True)
    for refused in sending.refused:
        click.echo(f"  {one_line(refused, 300)}", err=True)
    if before := sum(status != 200 for status in done.values()):
        click.echo(
            f"{before} refused before: {target} says why; take their lines out to send them again", err=True
        )
    if sending.ended_by or sending.gave_up:
        why = f"{sending.gave_up}; " if sending.gave_up else ""
        click.echo(f"{why}the same command goes on where this one ended", err=True)
    if sending.ended_by:
        sys.exit(exit_code(sending.ended_by))
    sys.exit(1 if sending.gave_up or before or served < answered else 0)
