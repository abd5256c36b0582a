"""With and without drafts: the model runs in a process of its own, started with the engine's BLAS."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import click

from loadtests.speculation import simulation
from loadtests.speculation.workloads import WORKLOADS
from scheduler.engine.mlx.cpu.fast_blas import default_threads, prepare
from scheduler.models.random_qwen3 import BENCH_13M, ensure_model, user_cache_folder


def numbers(context: click.Context, parameter: click.Parameter, text: str) -> tuple[int, ...]:
    """Return positive whole numbers, separated by commas. Raise BadParameter."""
    try:
        found = tuple(int(part) for part in text.split(","))
    except ValueError:
        found = ()
    if not found or min(found) < 1:
        raise click.BadParameter(f"{text!r} is not a list of positive numbers, such as 1,2,4")
    return found


@click.command("speculation")
@click.option("--model", type=click.Path(path_type=Path), help="Model folder; by default the bench model.")
@click.option(
    "--rows",
    callback=numbers,
    default="1,4,8,16,32",
    show_default=True,
    help="Numbers of rows that decode at once.",
)
@click.option("--workloads", default=",".join(WORKLOADS), show_default=True)
@click.option("--tokens", default=96, show_default=True, help="Tokens of each answer.")
@click.option(
    "--turns",
    default=2,
    show_default=True,
    help="Turns for each workload and number of rows, with and without drafts.",
)
@click.option(
    "--clock",
    type=click.Choice(["wall", "processor"]),
    default="wall",
    show_default=True,
    help="Clock by which the engine learns costs: processor time is more reliable on a busy machine.",
)
@click.option("--simulated", is_flag=True, help="Simulate a device on which extra tokens cost nothing.")
def speculation(
    model: Path | None,
    rows: tuple[int, ...],
    workloads: str,
    tokens: int,
    turns: int,
    clock: str,
    simulated: bool,
) -> None:
    """Compare tokens/s with and without speculation, in turn, by rows and by what they write."""
    if simulated:
        for line in simulation.described(rows):
            click.echo(line)
        return
    if unknown := set(workloads.split(",")) - WORKLOADS.keys():
        raise click.BadParameter(f"no workload {', '.join(sorted(unknown))}: {', '.join(WORKLOADS)}")
    cache = user_cache_folder(os.environ)
    folder = model or ensure_model(BENCH_13M, "bench-13m", cache)
    blas = prepare("auto", cache)
    environment = {"OPENBLAS_NUM_THREADS": str(default_threads())} | blas.environment(os.environ)
    command = [
        *(sys.executable, "-m", "loadtests.speculation", str(folder), ",".join(map(str, rows))),
        *(workloads, str(tokens), str(turns), clock),
    ]
    sys.exit(subprocess.run(command, env=environment).returncode)
