"""`penstock doctor`: what this machine is, and what stands in the way of serving on it."""

from __future__ import annotations

import sys
import textwrap
from collections.abc import Iterator, Sequence

import click

from api.cli.doctor.facts import Facts, gather
from api.cli.doctor.findings import Finding, findings, serves

_COLUMNS, _LEVEL_COLUMNS, _TOPIC_COLUMNS = 80, 9, 13
_COLOURS = {"ok": "green", "note": "yellow", "problem": "red"}


@click.command()
@click.option(
    "--port",
    type=click.IntRange(1, 65535),
    default=8000,
    envvar="PENSTOCK_PORT",
    metavar="PORT",
    help="Port to serve on.  [default: 8000, or PENSTOCK_PORT]",
)
def doctor(port: int) -> None:
    """Say what this machine can serve, and what stands in the way.

    Each finding says what to do, if anything. The exit code is 1 if `penstock serve` would fail.
    """
    facts = gather(port)
    found = findings(facts)
    for line in lines(facts, found):
        click.echo(line)
    sys.exit(0 if serves(found) else 1)


def lines(facts: Facts, found: Sequence[Finding]) -> Iterator[str]:
    """Yield what a terminal of 80 columns shows."""
    system = {"darwin": "macOS", "linux": "Linux"}.get(facts.platform, facts.platform)
    yield f"penstock {facts.version} on {system} {facts.architecture}, Python {facts.python}"
    yield ", ".join(f"{name} {release}" for name, release in facts.packages.items() if release)
    yield ""
    indent = _LEVEL_COLUMNS + _TOPIC_COLUMNS
    for one in found:
        described = [one.what, f"→ {one.todo}"] if one.todo else [one.what]
        text = [line for part in described for line in textwrap.wrap(part, _COLUMNS - indent)]
        level = click.style(f"{one.level:<{_LEVEL_COLUMNS}}", fg=_COLOURS[one.level])
        yield f"{level}{one.topic:<{_TOPIC_COLUMNS}}" + f"\n{' ' * indent}".join(text)
    yield ""
    problems = sum(one.level == "problem" for one in found)
    count = f"{problems} {'problem' if problems == 1 else 'problems'}"
    yield f"penstock serve would fail: {count}" if problems else "penstock serve can serve"
