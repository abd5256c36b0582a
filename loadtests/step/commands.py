"""`penstock bench dev step`: where one decode step goes, beside a bare `BatchGenerator`."""

from __future__ import annotations

import json
import os
import pickle
import random
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any, cast

import click

from api.cli.errors import OperatorError
from loadtests.step import table
from loadtests.step.record import Run
from loadtests.step.served import Sampling, served
from scheduler.engine.mlx.cpu.fast_blas import default_threads, prepare
from scheduler.models.embedded_model import EMBEDDED_FOLDER
from scheduler.models.random_qwen3 import BENCH_13M, ensure_model, user_cache_folder
from scheduler.shared.own_path import with_own_path

_PROMPT_TOKENS = 64
_COUNTED_STEPS = 16
_LEAST_STEPS = 2
_LONGER = (1, 4, 16)
_MORE_STEPS = 8
"""Steps that are not steady: the first ones and the last."""


def _numbers(context: click.Context, parameter: click.Parameter, text: str) -> tuple[int, ...]:
    """Return positive whole numbers, separated by commas. Raise BadParameter."""
    try:
        found = tuple(int(part) for part in text.split(","))
    except ValueError:
        found = ()
    if not found or min(found) < 1:
        raise click.BadParameter(f"{text!r} is not a list of positive numbers, such as 1,2,4")
    return found


@click.command("step")
@click.option(
    "--rows",
    callback=_numbers,
    default="1,4,32",
    show_default=True,
    help="Numbers of rows that decode at once.",
)
@click.option(
    "--model",
    type=click.Path(path_type=Path),
    help="Model folder, or `embedded`; by default the bench model.",
)
@click.option("--steps", default=64, show_default=True, help="Steps that are timed.")
@click.option(
    "--sampling",
    type=click.Choice(["greedy", "mixed"]),
    default="greedy",
    show_default=True,
    help="How the engine's rows are sampled; mixed: each in another way. The bare ones are greedy.",
)
def step(rows: tuple[int, ...], model: Path | None, steps: int, sampling: Sampling) -> None:
    """Show where a decode step goes: the engine, the server, a token's way to its client, and counts.

    A server is started whose processes are profiled from outside: each function of a part notes when it
    begins and ends. The same rows are decoded by a bare BatchGenerator, in turn. Times are of one run, counts
    of calls and operations of another.
    """
    cache = user_cache_folder(os.environ)
    folder = model or ensure_model(BENCH_13M, "bench-13m", cache)
    if model == Path("embedded"):
        folder = EMBEDDED_FOLDER
    blas = prepare(cache)
    environment = {"OPENBLAS_NUM_THREADS": str(default_threads())} | blas.environment(os.environ)
    config = json.loads((folder / "config.json").read_text())
    vocabulary = int(config.get("vocab_size") or config["text_config"]["vocab_size"])
    with served(folder, max(rows), sampling) as started, _bare(folder, environment) as alone:

        def runs(count: int, steps: int, counting: bool) -> tuple[Run, Run, Run]:
            """Return the runs of the engine, of the bare loop, and of the server. On a busy machine requests
            may come one by one, and must be longer to run at the same time."""
            draw = random.Random(f"{counting} {count}")
            asked = [[draw.randrange(1, vocabulary) for _ in range(_PROMPT_TOKENS)] for _ in range(count)]
            for longer in _LONGER:
                engine, server = started.run(asked, longer * steps + _MORE_STEPS, counting)
                if min(len(table.steady(run, count)) for run in (engine, server)) >= _LEAST_STEPS:
                    return engine, alone(asked, steps, counting), server
            raise OperatorError(f"{count} requests did not run at the same time: the machine is too busy")

        runs(rows[0], _MORE_STEPS, False)  # To warm up.
        for count in rows:
            timed, counted = runs(count, steps, False), runs(count, _COUNTED_STEPS, True)
            for line in table.lines(count, *zip(timed, counted, strict=True)):
                click.echo(line)


@contextmanager
def _bare(folder: Path, environment: Mapping[str, str]) -> Iterator[Callable[..., Run]]:
    """Start the process of `bare.py`. Yield what gives it a job."""
    command = [sys.executable, "-m", "loadtests.step.bare", str(folder)]
    pipe, environment = subprocess.PIPE, with_own_path(environment)
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, env=environment) as process:
        jobs, runs = cast("tuple[IO[bytes], IO[bytes]]", (process.stdin, process.stdout))

        def run(*job: Any) -> Run:
            jobs.write(pickle.dumps(job))
            jobs.flush()
            return cast(Run, pickle.load(runs))

        yield run
        jobs.close()
