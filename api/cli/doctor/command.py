"""`penstock doctor`: what this machine is, and what stands in the way of serving on it."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

import click
from rich.console import Console
from rich.table import Table
from rich.text import Text

from api.cli.doctor.facts import Facts, gather
from api.cli.doctor.findings import Finding, findings, serves
from api.cli.models.reading import folders_option

_COLUMNS = 80
_PORT = 8000
"""The default port of `serve`."""
_STYLES = {"ok": "green", "note": "yellow", "problem": "bold red"}


@click.command()
@click.option(
    "--port",
    "ports",
    type=click.IntRange(1, 65535),
    multiple=True,
    envvar="PENSTOCK_PORT",
    metavar="PORT",
    help="Port to serve on; may be repeated.  [default: 8000, or PENSTOCK_PORT]",
)
@folders_option
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def doctor(ports: Sequence[int], folders: Sequence[Path], as_json: bool) -> None:
    """Say what this machine can serve, and what stands in the way.

    Each finding says what to do, if anything. The exit code is 1 if `penstock serve` would fail.
    """
    facts = gather(ports or (_PORT,), folders)
    found = findings(facts)
    if as_json:
        listing = {**facts.version.listing(), "serves": serves(found), "findings": [*map(asdict, found)]}
        click.echo(json.dumps(listing, indent=2))
    else:
        show(facts, found, Console(highlight=False, width=min(_COLUMNS, Console().width)))
    sys.exit(0 if serves(found) else 1)


def show(facts: Facts, found: Sequence[Finding], console: Console) -> None:
    system = {"darwin": "macOS", "linux": "Linux"}.get(facts.platform, facts.platform)
    packages = ", ".join(f"{name} {release}" for name, release in facts.packages.items() if release)
    console.print(f"penstock {facts.version} on {system} {facts.architecture}, Python {facts.python}")
    console.print(f"{packages}\n")
    table = Table(box=None, show_header=False, padding=(0, 2, 0, 0), pad_edge=False)
    table.add_column(no_wrap=True)
    table.add_column(max_width=16, overflow="fold")
    table.add_column(overflow="fold")
    for one in found:
        described = Text(one.what)
        if one.todo:
            described.append(f"\n→ {one.todo}", style="dim" if one.level == "ok" else "")
        table.add_row(Text(one.level, style=_STYLES[one.level]), Text(one.topic), described)
    console.print(table)
    console.print(f"\n{_verdict(found)}")


def _verdict(found: Sequence[Finding]) -> str:
    if problems := sum(one.level == "problem" for one in found):
        return f"penstock serve would fail: {problems} {'problem' if problems == 1 else 'problems'}"
    return "penstock serve can serve"
