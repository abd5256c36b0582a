"""`penstock bench retention`: exit 1 if the server's rule of eviction prefills too much again."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence

import click

from loadtests.chaos import report
from loadtests.retention.replay import Again, run
from loadtests.retention.traces import POPULATIONS

MOST_OF_OTHERS = 1.05
"""The server's rule may prefill again at most this multiple of what either other rule does, on any trace."""
MOST_WITH_GAPS = 0.9
"""This multiple on traces with tool gaps, in sessions that clients name."""
WITH_GAPS = ("farm", "long", "polluted", "mixed")


@click.command("retention")
@click.option(
    "--trace",
    "names",
    multiple=True,
    type=click.Choice(list(POPULATIONS)),
    help="Trace to replay; may be repeated; by default all.",
)
@click.option("--seconds", default=1800.0, show_default=True, help="Simulated time of each trace.")
@click.option(
    "--share", default=0.25, show_default=True, help="Share of the memory that would hold everything."
)
@click.option("--seed", default=0, show_default=True)
def retention_command(names: tuple[str, ...], seconds: float, share: float, seed: int) -> None:
    """Compare rules of eviction by the tokens that agents' traces prefill again (no model)."""
    found: list[Again] = []
    for name in names or POPULATIONS:
        found += run(name, seconds, share, seed)
        click.echo(f"{name}: {found[-1].requests} requests", err=True)
    complained = [sentence for one in traces_of(found) for sentence in complaints(one)]
    click.echo(report.text("Retention", complained, list(_sections(found))))
    sys.exit(1 if complained else 0)


def traces_of(found: Sequence[Again]) -> Iterator[list[Again]]:
    """Yield each trace's results, the server's own rule last."""
    for name in dict.fromkeys(one.trace for one in found):
        yield [one for one in found if one.trace == name]


def complaints(found: Sequence[Again]) -> Iterator[str]:
    """Yield the complaints about one trace."""
    *others, own = found
    most = MOST_WITH_GAPS if own.trace in WITH_GAPS else MOST_OF_OTHERS
    for other in others:
        if own.again > most * other.again:
            yield (
                f"{own.trace}: {own.again:,} tokens again,"
                f" more than {most:g} of {other.rule}'s {other.again:,}"
            )


def _sections(found: Sequence[Again]) -> Iterator[report.Section]:
    for one in traces_of(found):
        first = one[0]
        yield (
            f"{first.trace}: {first.requests} requests, {first.prompt_tokens:,} tokens,"
            f" room for {first.room_tokens:,}; prefilled again, of all",
            [(each.rule, f"{each.again:,}, {each.again / each.prompt_tokens:.3f}") for each in one],
        )
