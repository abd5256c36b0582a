"""`penstock bench dev step`: where one decode step goes, beside a bare `BatchGenerator`."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import click

from api.cli.errors import OperatorError
from loadtests.speculation.commands import numbers
from loadtests.step import record, table
from loadtests.step.record import Run
from loadtests.step.served import Sampling, Served, prompts, served
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


@click.command("step")
@click.option(
    "--rows",
    callback=numbers,
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
    blas = prepare("auto", cache)
    environment = {"OPENBLAS_NUM_THREADS": str(default_threads())} | blas.environment(os.environ)
    vocabulary = _vocabulary(folder)
    with served(folder, max(rows), sampling) as started, _bare(folder, environment) as process:
        _both(started, process, vocabulary, rows[0], _MORE_STEPS, False, "warm-up")
        for count in rows:
            engine, server, bare = _both(started, process, vocabulary, count, steps, False, "times")
            counted = _both(started, process, vocabulary, count, _COUNTED_STEPS, True, "counts")
            for line in table.lines(
                count,
                table.side(engine, counted[0], count),
                table.side(bare, counted[2], count),
                table.side(server, counted[1], count),
                table.way_out(engine, server),
            ):
                click.echo(line)


def _vocabulary(folder: Path) -> int:
    config = json.loads((folder / "config.json").read_text())
    return int(config.get("vocab_size") or config["text_config"]["vocab_size"])


def _both(
    started: Served,
    process: subprocess.Popen[str],
    vocabulary: int,
    rows: int,
    steps: int,
    counting: bool,
    salt: str,
) -> tuple[Run, Run, Run]:
    """Return the runs of the engine, of the server, and of the bare loop. On a busy machine requests may come
    one by one, and must be longer to run at the same time."""
    asked = prompts(vocabulary, rows, _PROMPT_TOKENS, salt)
    for longer in _LONGER:
        engine, server = started.run(asked, longer * steps + _MORE_STEPS, counting)
        if (
            len(table.steady(engine, rows)) >= _LEAST_STEPS
            and len(table.steady(server, rows)) >= _LEAST_STEPS
        ):
            return engine, server, _alone(process, asked, steps, counting)
    raise OperatorError(f"{rows} requests did not run at the same time: the machine is too busy")


@contextmanager
def _bare(folder: Path, environment: Mapping[str, str]) -> Iterator[subprocess.Popen[str]]:
    with subprocess.Popen(
        [sys.executable, "-m", "loadtests.step.bare", str(folder)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env=with_own_path(environment),
    ) as process:
        _answer(process)
        yield process
        assert process.stdin is not None
        process.stdin.close()


def _alone(process: subprocess.Popen[str], asked: Sequence[Sequence[int]], steps: int, counting: bool) -> Run:
    assert process.stdin is not None
    process.stdin.write(json.dumps({"prompts": asked, "steps": steps, "counting": counting}) + "\n")
    process.stdin.flush()
    return record.of(_answer(process))


def _answer(process: subprocess.Popen[str]) -> dict[str, Any]:
    assert process.stdout is not None
    found: dict[str, Any] = json.loads(process.stdout.readline())
    return found
