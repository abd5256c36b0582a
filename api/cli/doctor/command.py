"""`penstock doctor`: what this machine is, and what stands in the way of serving on it."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click
from rich.console import Console
from rich.table import Table
from rich.text import Text

from api.cli.doctor.facts import Facts
from api.cli.doctor.findings import Finding, findings, serves
from api.cli.doctor.gathering import gather
from api.cli.doctor.report import write_report
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
@click.option(
    "--report",
    type=click.Path(dir_okay=False, path_type=Path),
    metavar="FILE",
    help="Also check every branch of the engine on this device, measure it (10 minutes at most; nothing is"
    " downloaded), and write all of it to FILE, without names of persons, machines, folders or models.",
)
@click.option("--quick", is_flag=True, help="With --report: smaller sizes, about a minute.")
def doctor(
    ports: Sequence[int],
    folders: Sequence[Path],
    as_json: bool,
    report: Path | None,
    quick: bool,
) -> None:
    """Say what this machine can serve, and what stands in the way.

    Each finding says what to do, if anything. The exit code is 1 if `penstock serve` would fail.
    """
    facts = gather(ports or (_PORT,), folders)
    found = findings(facts)
    if report is not None:
        code = write_report(report, facts, found, quick)
        click.echo(f"\nwritten: {report}\nRead it, and paste all of it into an issue of this project.")
        sys.exit(code if serves(found) else 1)
    if as_json:
        click.echo(json.dumps(as_object(facts, found), indent=2))
    else:
        width = min(_COLUMNS, Console().width)
        show(facts, found, Console(highlight=False, width=width))
    sys.exit(0 if serves(found) else 1)


def show(facts: Facts, found: Sequence[Finding], console: Console) -> None:
    system = {"darwin": "macOS", "linux": "Linux"}.get(facts.platform, facts.platform)
    console.print(f"penstock {facts.version} on {system} {facts.architecture}, Python {facts.python}\n")
    table = Table(box=None, show_header=False, padding=(0, 2, 0, 0), pad_edge=False)
    table.add_column(no_wrap=True)
    table.add_column(max_width=16, overflow="fold")
    table.add_column(overflow="fold")
    for one in found:
        described = Text(one.what)
        if one.todo:
            described.append(f"\n→ {one.todo}", style="dim" if one.level == "ok" else "")
        table.add_row(Text(one.level, style=_STYLES[one.level]), Text(one.heading), described)
    console.print(table)
    console.print(f"\n{_verdict(found)}")


def _verdict(found: Sequence[Finding]) -> str:
    if problems := sum(one.level == "problem" for one in found):
        return f"penstock serve would fail: {problems} {'problem' if problems == 1 else 'problems'}"
    return "penstock serve can serve"


def as_object(facts: Facts, found: Sequence[Finding]) -> dict[str, Any]:
    """Return what `--json` prints. Sizes are in bytes."""
    machine = facts.machine
    return {
        **facts.version.listing(),
        "serves": serves(found),
        "platform": facts.platform,
        "python": facts.python,
        "device": None if machine is None else {"name": machine.device, "kind": machine.kind},
        "memory": {
            "physical_bytes": facts.physical_bytes,
            "allowed_bytes": None if machine is None else machine.machine_bytes,
            "available_bytes": facts.available_bytes,
            "engine_bytes": facts.limit_bytes or None,
        },
        "findings": [
            {"level": one.level, "topic": one.heading, "what": one.what, "todo": one.todo or None}
            for one in found
        ],
        "models": [{"name": one.model.name, "reason": one.reason or None} for one in facts.models],
    }
