"""`penstock bench device`: exit 1 if a branch of the engine is wrong on this device."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import click

from scheduler.engine.mlx.cpu.fast_blas import default_threads, prepare
from scheduler.models.embedded_model import EMBEDDED_FOLDER
from scheduler.models.random_qwen3 import BENCH_13M, ensure_model, user_cache_folder


@click.command()
@click.option(
    "--model",
    type=click.Path(path_type=Path),
    help="Model folder, or `embedded`, for steps and memory; by default the bench model.",
)
@click.option("--quick", is_flag=True, help="Smaller sizes: under a minute, with the embedded model.")
@click.option("--out", type=click.Path(path_type=Path), default=Path("bench"), show_default=True)
def device(model: Path | None, quick: bool, out: Path) -> None:
    """Check every branch of the engine on this device; measure steps and memory.

    It takes 10 minutes at most, and writes device.json and device.md to send in.
    """
    cache = user_cache_folder(os.environ)
    if model == Path("embedded") or (quick and model is None):
        folder, name = EMBEDDED_FOLDER, "embedded"
    elif model is None:
        folder, name = ensure_model(BENCH_13M, "bench-13m", cache), "bench-13m"
    else:
        folder, name = model, model.name
    extent = "quick" if quick else "full"
    command = [sys.executable, "-m", "loadtests.device", str(folder), name, str(out), extent]
    blas = prepare("auto", cache)
    environment = {"OPENBLAS_NUM_THREADS": str(default_threads())} | blas.environment(os.environ)
    sys.exit(subprocess.run(command, env=environment).returncode)
