"""`penstock bench dev step`: where one decode step goes, beside a bare `BatchGenerator`."""

from __future__ import annotations

import json
import os
import pickle
import random
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from dataclasses import dataclass
from http.client import HTTPConnection
from multiprocessing.connection import Connection, Listener
from pathlib import Path
from statistics import median
from threading import Barrier
from typing import IO, Any, TypeAlias, cast

import click

from api.cli.errors import OperatorError
from loadtests.commands import folder_of
from loadtests.figures import percentile
from loadtests.launch import ROOT, free_port
from loadtests.step.steps import ADDRESS_VARIABLE, REST, Run, Step, take
from scheduler.engine.mlx.cpu.fast_blas import default_threads, prepare
from scheduler.shared.own_path import with_own_path
from scheduler.shared.user_cache import user_cache_folder

ENGINE_PARTS = ("drain", "plan", "graph", "sample", "submit", "read", "account", "emit", "send", REST)
SERVER_PARTS = ("parse", "account", "route", "detokenize", "encode", "write", REST)
_WHOLE = "whole step"
_HOOKS = Path(__file__).with_name("hooks")
_TIMEOUT_SECONDS = 120.0
_PROMPT_TOKENS, _COUNTED_STEPS, _LEAST_STEPS, _WARM_STEPS = 64, 16, 2, 4
_LONGER = (1, 4, 16)
_MORE_STEPS = 8
"""Steps that are not steady: the first ones and the last."""
Runs: TypeAlias = tuple[Run, Run]
"""A run of one process for times, and one for counts."""


@click.command("step")
@click.option(
    "--rows",
    type=click.IntRange(1),
    multiple=True,
    default=(1, 4, 32),
    show_default=True,
    help="Rows that decode at once; may be repeated.",
)
@click.option(
    "--model",
    type=click.Path(path_type=Path),
    help="Model folder, or `embedded`; by default the bench model.",
)
@click.option("--steps", default=64, show_default=True, help="Steps that are timed.")
def step(rows: tuple[int, ...], model: Path | None, steps: int) -> None:
    """Show where a decode step goes: in the engine, in the server, and what is counted.

    The processes of a server are profiled from outside, beside a bare BatchGenerator with the same rows.
    """
    folder = folder_of(model)
    config = json.loads((folder / "config.json").read_text())
    vocabulary = int(config.get("vocab_size") or config["text_config"]["vocab_size"])
    with _served(folder, max(rows)) as served, bare(folder) as alone:

        def runs(count: int, steps: int, counting: bool) -> tuple[Run, Run, Run]:
            """Return the runs of the engine, of the bare loop, and of the server. On a busy machine requests
            may come one by one, and must be longer to run at the same time."""
            draw = random.Random(f"{counting} {count}")
            asked = [[draw.randrange(1, vocabulary) for _ in range(_PROMPT_TOKENS)] for _ in range(count)]
            for longer in _LONGER:
                engine, server = served.run(asked, longer * steps + _MORE_STEPS, counting)
                if min(len(steady(run, count)) for run in (engine, server)) >= _LEAST_STEPS:
                    return engine, alone(asked, steps, counting), server
            raise OperatorError(f"{count} requests did not run at the same time: the machine is too busy")

        runs(rows[0], _MORE_STEPS, False)  # To warm up.
        for count in rows:
            timed, counted = runs(count, steps, False), runs(count, _COUNTED_STEPS, True)
            for line in lines(count, *zip(timed, counted, strict=True)):
                click.echo(line)


@dataclass(slots=True)
class _Served:
    """A server that runs; `links` to its engine and to itself."""

    address: str
    links: Sequence[Connection]

    def run(self, prompts: Sequence[Sequence[int]], tokens: int, counting: bool) -> tuple[Run, Run]:
        """Stream an answer of this many tokens to each prompt, all at once. Return the engine's run and the
        server's. Raise TimeoutError if they do not come."""
        count = len(prompts)
        together = Barrier(count)
        with ThreadPoolExecutor(count + len(self.links)) as threads:
            for link in self.links:
                link.send(counting)
            engine, server = (threads.submit(take, link, count, _TIMEOUT_SECONDS) for link in self.links)
            list(threads.map(lambda prompt: self._stream(prompt, tokens, together), prompts))
            return engine.result(), server.result()

    def _stream(self, prompt: Sequence[int], tokens: int, together: Barrier) -> None:
        body: dict[str, Any] = {"prompt": prompt, "max_tokens": tokens, "stream": True}
        body |= {"ignore_eos": True, "temperature": 0}
        # httpx would take ten times the processor time.
        with closing(HTTPConnection(self.address, timeout=_TIMEOUT_SECONDS)) as http:
            http.connect()
            together.wait(_TIMEOUT_SECONDS)
            http.request("POST", "/v1/completions", json.dumps(body), {"content-type": "application/json"})
            text = http.getresponse().read()
        if b"data: [DONE]" not in text:
            raise ConnectionError(f"the stream was cut: {text[-256:].decode('utf-8', 'replace')}")


@contextmanager
def _served(folder: Path, slots: int) -> Iterator[_Served]:
    """Start a server of this model whose processes are profiled; end it behind the block. It takes no drafts,
    because a bare BatchGenerator has none."""
    # Without the options of the machine's owner, which may name a model.
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PENSTOCK_")}
    given = environment.get("PYTHONPATH")
    environment["PYTHONPATH"] = os.pathsep.join(filter(None, (str(_HOOKS), str(ROOT), given)))
    port = str(free_port())
    command = [sys.executable, "-m", "api", "serve", "--port", port, "--max-slots", str(slots)]
    command += ["--model", str(folder), "--speculation", "none", "--log-level", "warning"]
    with Listener(family="AF_UNIX") as listener:
        environment[ADDRESS_VARIABLE] = str(listener.address)
        with subprocess.Popen(command, env=environment, stdout=sys.stderr) as process:
            try:
                links = {link.recv(): link for link in (listener.accept(), listener.accept())}
                yield _Served(f"127.0.0.1:{port}", (links["engine"], links["server"]))
            finally:
                process.terminate()


@contextmanager
def bare(folder: Path) -> Iterator[Callable[..., Run]]:
    """Start the process of `bare.py`, with the engine's BLAS. Yield what gives it a job."""
    blas = prepare(user_cache_folder(os.environ))
    environment: Mapping[str, str] = {"OPENBLAS_NUM_THREADS": str(default_threads())}
    command = [sys.executable, "-m", "loadtests.step.bare", str(folder)]
    pipe, environment = subprocess.PIPE, with_own_path({**environment, **blas.environment(os.environ)})
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, env=environment) as process:
        jobs, runs = cast("tuple[IO[bytes], IO[bytes]]", (process.stdin, process.stdout))

        def run(*job: Any) -> Run:
            jobs.write(pickle.dumps(job))
            jobs.flush()
            return cast(Run, pickle.load(runs))

        yield run
        jobs.close()


def steady(run: Run, rows: int) -> list[Step]:
    """Return the steps in which all rows got a token, and nothing else was done."""
    return [step for step in run.steps if step.rows == rows][_WARM_STEPS:]


def times(run: Run, rows: int) -> dict[str, list[float]]:
    """Return milliseconds of each part: median, 99th percentile, and the median of processor time. Raise
    ValueError if there is no steady step."""
    steps = [step.times for step in steady(run, rows)]
    if not steps:
        raise ValueError(f"no step gave all {rows} rows a token")
    parts = {name: [one.get(name, (0.0, 0.0)) for one in steps] for name in set().union(*steps)}
    parts[_WHOLE] = [
        (sum(wall for wall, _ in one.values()), sum(cpu for _, cpu in one.values())) for one in steps
    ]
    found = {}
    for name, seconds in parts.items():
        walls = sorted(wall for wall, _ in seconds)
        processor = median(cpu for _, cpu in seconds)
        found[name] = [1000 * one for one in (percentile(walls, 0.5), percentile(walls, 0.99), processor)]
    return found


def counts(run: Run, rows: int) -> dict[str, float]:
    """Return the medians of what is counted in a step."""
    steps = steady(run, rows)
    names = dict.fromkeys(name for step in steps for name in step.counts)
    return {name: median(step.counts[name] for step in steps if name in step.counts) for name in names}


def lines(rows: int, engine: Runs, bare: Runs, server: Runs) -> Iterator[str]:
    """Yield the tables of one number of rows."""
    steps = len(steady(engine[0], rows))
    yield f"\n{rows} {'row' if rows == 1 else 'rows'}, a decode step in ms ({steps} steps)"
    yield _line("", "engine", "p99", "CPU", "bare", "p99", "CPU")
    ours, theirs, loop = (times(runs[0], rows) for runs in (engine, bare, server))
    for part in (*ENGINE_PARTS, _WHOLE):
        yield _line(part, *ours.get(part, [None] * 3), *theirs.get(part, []))
    yield _line("the server's event loop", "passed", "p99", "CPU")
    for part in SERVER_PARTS:
        # What passed in the rest is waiting, and is the engine's step.
        yield _line(part, *loop.get(part, []))
    yield _line("counts a step", "engine", "bare", "server")
    counted = [counts(runs[1], rows) for runs in (engine, bare, server)]
    for name in dict.fromkeys(name for one in counted for name in one):
        yield _line(name, *(f"{one[name]:.1f}" if name in one else None for one in counted))


def _line(name: str, *cells: float | str | None) -> str:
    texts = (f"{cell:.3f}" if isinstance(cell, float) else cell or "" for cell in cells)
    return f"  {name:26}{''.join(f'{text:>9}' for text in texts)}".rstrip()
