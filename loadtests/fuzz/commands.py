"""`penstock bench dev fuzz`: exit 1 if an engine died, an answer failed, or the event loop stalled."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator

import click
import trio

from loadtests.chaos import report
from loadtests.fuzz import run
from loadtests.fuzz.run import Fuzzed, FuzzPlan

_MEGABYTE = 1 << 20


@click.command()
@click.option("--requests", default=5000, show_default=True)
@click.option("--seed", default=0, show_default=True, help="Random seed of the bodies.")
@click.option("--in-flight", default=32, show_default=True, help="Requests in flight.")
@click.option("--seconds", default=1800.0, show_default=True, help="Send no request after this time.")
@click.option("--adapter", "adapters", multiple=True, help="LoRA adapter as name=folder; several times.")
def fuzz(requests: int, seed: int, in_flight: int, seconds: float, adapters: tuple[str, ...]) -> None:
    """Send bodies with boundary values in every number, many at once: no engine may die, no answer may
    fail."""
    plan = FuzzPlan(requests, seed, in_flight, seconds, adapters)
    found = trio.run(run.run, plan, _note)
    click.echo(report.text("Fuzz", complaints := list(found.complaints(plan)), list(_sections(found))))
    for what, body in found.first_error.items():
        click.echo(f"the first {what}: POST {body.path} {json.dumps(body.body)}")
    sys.exit(1 if complaints else 0)


def _note(text: str) -> None:
    click.echo(text, err=True)


def _sections(found: Fuzzed) -> Iterator[report.Section]:
    counts = ((str(status), f"{times}") for status, times in sorted(found.statuses.items()))
    failed = ((f"failed as {code}", f"{times}") for code, times in sorted(found.errors.items()))
    lost = ((f"lost: {what}", f"{times}") for what, times in sorted(found.lost.items()))
    yield f"Answers, in {found.seconds:.0f} s", [*counts, *failed, *lost]
    yield (
        "The server",
        [
            ("engines that died", f"{found.deaths:g}"),
            ("longest stall of the event loop", f"{found.silence.seconds:.3f} s"),
            ("pages read from a disk during it", f"{found.silence.major_faults}"),
            ("bodies sent or answered at it", ", ".join(map(str, found.around_stall())) or "none"),
            ("the same including the machine's noise", f"{found.silence.wall_seconds:.3f} s"),
            ("probes", f"{found.silence.probes}"),
            *(
                (f"{process}: resident MB", f"{before / _MEGABYTE:.0f} → {after / _MEGABYTE:.0f}")
                for process, (before, after) in found.resident_bytes.items()
            ),
        ],
    )
