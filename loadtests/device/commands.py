"""`penstock bench device`: exit 1 if a branch of the engine is wrong on this device."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import click

from loadtests.commands import folder_of
from loadtests.device.parts import SECONDS, Measurement
from scheduler.engine.mlx.cpu.fast_blas import default_threads, prepare
from scheduler.shared.user_cache import user_cache_folder

MODULE = "loadtests.device"
_MINUTES = 12.0


@click.command()
@click.option(
    "--model",
    type=click.Path(path_type=Path),
    help="Model folder, or `embedded`, for steps and memory; by default the bench model.",
)
@click.option("--quick", is_flag=True, help="Smaller sizes: about a minute, with the embedded model.")
@click.option(
    "--minutes",
    default=_MINUTES,
    show_default=True,
    help="Bound on all of it; more give each part more, too.",
)
@click.option(
    "--part", "parts", multiple=True, type=click.Choice([*SECONDS]), help="Only these; in order of worth."
)
@click.option("--go-on", is_flag=True, help="Without the parts that an earlier run has in the same folder.")
@click.option("--out", type=click.Path(path_type=Path), default=Path("bench"), show_default=True)
def device(
    model: Path | None, quick: bool, minutes: float, parts: tuple[str, ...], go_on: bool, out: Path
) -> None:
    """Check every branch of the engine on this device; measure steps, servers and memory.

    It writes device.json and device.md, to send in, behind each finding, and goes on where a part ends its
    process or takes too long.
    """
    if quick and model is None:
        model = Path("embedded")
    folder, name = folder_of(model), model.name if model else "bench-13m"
    blas = prepare(user_cache_folder(os.environ))
    measurement = Measurement(
        [sys.executable, "-m", MODULE, str(out / "device.jsonl"), str(folder), "quick" if quick else "full"],
        {"OPENBLAS_NUM_THREADS": str(default_threads())} | blas.environment(os.environ),
        out,
        name,
        quick,
        60 * minutes,
        {
            part: seconds * max(1.0, minutes / _MINUTES)
            for part, seconds in SECONDS.items()
            if part in parts or not parts
        },
    )
    complaints = list(measurement.run(go_on).complaints())
    for complaint in complaints:
        click.echo(f"wrong: {complaint}")
    click.echo(f"report:  {out / 'device.md'}\nfigures: {out / 'device.json'}")
    sys.exit(1 if complaints else 0)
