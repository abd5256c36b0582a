"""Launch a server, wait until it is ready, measure it, and stop it without leaving anything behind.

Every server gets the same fast BLAS on a Linux CPU, the same number of BLAS threads, the same number of
slots, and its own home folder for caches, so that no run warms the next.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, Final, TypeVar

import httpx
import trio

from loadtests import client
from loadtests.presets import Preset
from loadtests.record import Outcome
from loadtests.targets import Launch, Target, build_body
from loadtests.workload import Ask
from scheduler.engine.mlx.cpu.fast_blas import BlasChoice, default_threads
from scheduler.models.kept_folder import MANIFEST
from scheduler.processes.process import Exit

T = TypeVar("T")
Note = Callable[[str], None]
"""Called with a line about each event."""

SLOTS: Final = 32
_POLL_SECONDS = 0.1
_KILL_SECONDS = 5.0
"""A killed process is gone immediately, unless the kernel blocks it."""
_SWEEP_SECONDS = 30.0
_NICENESS = 5
_TAIL_LINES = 20
_TAIL_BYTES = 16_384

_OURS_TO_SET = ("PYTHON", "VIRTUAL_ENV", "PENSTOCK_", "HF_", "XDG_", "LD_PRELOAD", "OPENBLAS_", "RAPID_MLX_")
"""The caller's values of these variables must not reach some targets and not others."""


class LaunchError(Exception):
    """A target could not be started; the message has the last lines of its log."""


@dataclass(frozen=True, slots=True)
class Patience:
    """How long a server may take to start and to stop."""

    start_seconds: float = 600.0
    """Bound on the time until the first completion is whole; this includes reading a large model from
    disk."""
    stop_seconds: float = 30.0
    """Time from SIGTERM until its process group is killed."""


@dataclass(frozen=True, slots=True)
class Bench:
    """What all targets of a comparison have in common."""

    model: Path
    """The model's folder."""
    blas: BlasChoice
    slots: int = SLOTS
    patience: Patience = Patience()


def _silent(text: str) -> None:
    """Drop the line."""


async def with_servers(
    choices: Sequence[Target | Launch],
    bench: Bench,
    body: Callable[[tuple[Target, ...]], Awaitable[T]],
    note: Note = _silent,
) -> T:
    """Run `body` with all targets, in their order; those to be launched run from before it to after it.

    All run at the same time, so that they can be measured in turn; those not being measured are idle. Raise
    LaunchError, without calling `body`, if one does not start or does not answer; what can be known without
    starting a server is known before the first one is started.
    """
    for choice in choices:
        if isinstance(choice, Launch):
            command(choice, bench, port=0)
            if not bench.model.is_dir():
                raise LaunchError(f"{choice.name}: --model {bench.model} is not a folder")
    seconds = bench.patience.start_seconds
    found: list[Target | Launch] = [
        one if isinstance(one, Launch) else await answering(one, seconds) for one in choices
    ]
    return await _nested(tuple(found), (), bench, body, note)


async def _nested(
    waiting: tuple[Target | Launch, ...],
    up: tuple[Target, ...],
    bench: Bench,
    body: Callable[[tuple[Target, ...]], Awaitable[T]],
    note: Note,
) -> T:
    if not waiting:
        return await body(up)
    first, *others = waiting

    async def go_on(target: Target) -> T:
        return await _nested(tuple(others), (*up, target), bench, body, note)

    if isinstance(first, Launch):
        return await with_server(first, bench, go_on, note)
    return await go_on(first)


async def with_server(
    launch: Launch, bench: Bench, body: Callable[[Target], Awaitable[T]], note: Note = _silent
) -> T:
    """Run `body` with a target that has started and answered; stop it when `body` returns, raises or is
    cancelled.

    If the server dies meanwhile, `body` continues and records the failures, and `note` is called. Raise
    LaunchError if the server did not start.
    """
    port = free_port()
    folder = Path(tempfile.mkdtemp(prefix="penstock-target-"))
    try:
        log = folder / "log"
        process = await _start(launch, bench, port, folder, log)
        measured = False
        try:
            target = _target(launch, bench, f"http://127.0.0.1:{port}")
            started = trio.current_time()
            note(f"{launch.name}: starting {launch.preset.name}")
            await _wait_answering(process, target, log, bench.patience.start_seconds)
            note(f"{launch.name}: ready after {trio.current_time() - started:.1f} s")
            measured = True
            return await body(target)
        finally:
            if measured and process.poll() is not None:
                note(f"{launch.name}: the server {Exit(process.returncode)}; its log ends:\n{tail(log)}")
            if not await _stop(process, bench.patience.stop_seconds):
                note(f"{launch.name}: killed; it did not stop within {bench.patience.stop_seconds:g} s")
    finally:
        with trio.CancelScope(shield=True, deadline=trio.current_time() + _SWEEP_SECONDS):
            # In a thread: the caches that peers write when they stop may be gigabytes.
            sweep = partial(shutil.rmtree, folder, ignore_errors=True)
            await trio.to_thread.run_sync(sweep, abandon_on_cancel=True)


async def _start(launch: Launch, bench: Bench, port: int, home: Path, log: Path) -> trio.Process:
    try:
        with log.open("wb") as output:
            return await trio.lowlevel.open_process(
                # Servers run at a lower priority than the load generator. A server that takes every core
                # would delay the generator, whose lateness would count as the server's.
                ["nice", "-n", str(_NICENESS), *command(launch, bench, port)],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                env=environment(os.environ, home, launch.preset, bench.blas),
                # Penstock runs with -m from the current folder, which has its packages. A peer must find none
                # of them, and its files must be deleted with its home.
                cwd=None if launch.preset.takes_blas else home,
                # A process group of its own, to be killed as a whole; Ctrl-C must not reach it.
                start_new_session=True,
            )
    except OSError as error:
        raise LaunchError(f"{launch.name}: cannot start the server: {error}") from error


def command(launch: Launch, bench: Bench, port: int) -> list[str]:
    """Return the command that starts the server. Raise LaunchError if its program does not exist."""
    preset = launch.preset
    values = {
        "model": str(bench.model.resolve()),
        "port": str(port),
        "slots": str(bench.slots),
    }
    filled = [argument.format_map(values) for argument in preset.arguments]
    return [*_program(launch), *filled, *launch.arguments]


def _program(launch: Launch) -> list[str]:
    preset = launch.preset
    given = launch.program or os.environ.get(preset.variable)
    if given:
        path = Path(given).expanduser().absolute()
        program = path / "bin" / preset.program if path.is_dir() else path
        if not program.is_file():
            raise LaunchError(f"{launch.name}: there is no {program}")
        return [str(program)]
    if preset.takes_blas:
        return [sys.executable, "-m", "api"]
    found = shutil.which(preset.program)
    if found is None:
        raise LaunchError(
            f"{launch.name}: no program {preset.program!r} on PATH; set {preset.variable} to its virtual "
            "environment (loadtests/peers/README.md says how to make one)"
        )
    return [found]


def environment(base: Mapping[str, str], home: Path, preset: Preset, blas: BlasChoice) -> dict[str, str]:
    """Return the target's environment: no variable of the caller's that could favour one, and no network."""
    kept = {name: value for name, value in base.items() if not name.startswith(_OURS_TO_SET)}
    kept |= {
        "HOME": str(home),
        "TMPDIR": str(home),
        "PYTHONUNBUFFERED": "1",
        "HF_HUB_OFFLINE": "1",
        "HF_HUB_DISABLE_TELEMETRY": "1",
        "DO_NOT_TRACK": "1",
        "OPENBLAS_NUM_THREADS": base.get("OPENBLAS_NUM_THREADS") or str(default_threads()),
    }
    return kept if preset.takes_blas else blas.environment(kept)


def free_port() -> int:
    """Return a port that was free a moment ago; a server that finds it taken exits with an error."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])


def _target(launch: Launch, bench: Bench, url: str) -> Target:
    preset = launch.preset
    return Target(
        name=launch.name,
        url=url,
        model=preset.model,
        knows=preset.knows,
        metrics_url=url + preset.metrics_path if preset.metrics_path else None,
        ready_path=preset.ready_path,
        eos_token_ids=() if "ignore_eos" in preset.knows else end_tokens(bench.model),
    )


def end_tokens(model: Path) -> tuple[int, ...]:
    """Return the tokens that end an answer of this model; none for our random weights, which do not produce
    them by chance, so that no target pays for a logit bias there."""
    if "shape" in _json(model / MANIFEST):
        return ()
    for name in ("generation_config.json", "config.json"):
        tokens = _json(model / name).get("eos_token_id")
        if isinstance(tokens, int):
            return (tokens,)
        if isinstance(tokens, list):
            return tuple(token for token in tokens if isinstance(token, int))
    return ()


def _json(path: Path) -> dict[str, Any]:
    """Return the file's object; an empty one for anything else."""
    try:
        found = json.loads(path.read_text("utf-8"))
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}


async def find_model(target: Target) -> Target:
    """Return the target with the first model that it lists, unless it names one. Raise LaunchError."""
    if target.model:
        return target
    try:
        async with httpx.AsyncClient(timeout=10.0, trust_env=False) as http:
            answer = await http.get(f"{target.url}/v1/models", headers=target.headers)
            if answer.status_code in (401, 403):
                raise LaunchError(f"{target.name}: {target.url} wants a key; give key_env=VARIABLE behind it")
            return replace(target, model=str(answer.json()["data"][0]["id"]))
    except (httpx.HTTPError, ValueError, LookupError, TypeError) as error:
        raise LaunchError(
            f"{target.name}: cannot get the model's name from {target.url}: {error!r}; give model="
        ) from error


async def answering(target: Target, seconds: float) -> Target:
    """Return a running target with its model's name, when one short completion is whole. Raise
    LaunchError."""
    found = await find_model(target)
    observed: client.Observed | None = None
    with trio.move_on_after(seconds):
        async with httpx.AsyncClient(timeout=None, trust_env=False) as http:
            observed = await _first_answer(http, found)
    if observed is None:
        raise LaunchError(f"{target.name}: no answer from {target.url} within {seconds:g} s")
    if observed.outcome is not Outcome.OK:
        raise LaunchError(f"{target.name}: {target.url} does not answer: {_failure(observed)}")
    return found


async def _first_answer(http: httpx.AsyncClient, target: Target) -> client.Observed:
    wish = Ask(
        messages=({"role": "user", "content": "ready?"},),
        max_tokens=4,
        exact=False,
        sampling={"temperature": 0.0},
    )
    observed = client.Observed(sent_at=trio.current_time())
    await client.follow(http, target.chat_url, target.headers, build_body(wish, target), wish, observed)
    return observed


def _failure(observed: client.Observed) -> str:
    status = "" if observed.status is None else f"{observed.status} "
    return f"{observed.outcome.value}: {status}{observed.detail}"


async def _wait_answering(process: trio.Process, target: Target, log: Path, seconds: float) -> None:
    """Wait until the server reports ready and one short completion is whole. Raise LaunchError."""
    observed: client.Observed | None = None
    with trio.move_on_after(seconds):
        async with httpx.AsyncClient(timeout=None, trust_env=False) as http:
            while process.poll() is None:
                with suppress(httpx.TransportError):
                    if (await http.get(target.url + target.ready_path)).status_code == 200:
                        break
                await trio.sleep(_POLL_SECONDS)
            else:
                raise LaunchError(f"{target.name}: the server {Exit(process.returncode)}:\n{tail(log)}")
            # Some servers report ready before their model is; only a completion shows it.
            observed = await _first_answer(http, target)
    if observed is None:
        raise LaunchError(f"{target.name}: no answer within {seconds:g} s:\n{tail(log)}")
    if observed.outcome is not Outcome.OK:
        raise LaunchError(
            f"{target.name}: ready, but its first completion was {_failure(observed)}\n{tail(log)}"
        )


async def _stop(process: trio.Process, seconds: float) -> bool:
    """Stop the server; return False if it had to be killed. This cannot be cancelled: a server left running
    would distort every later measurement."""
    with trio.CancelScope(shield=True, deadline=trio.current_time() + seconds):
        process.terminate()
        await process.wait()
    obeyed = process.poll() is not None
    # Also after a clean exit: it may have left children.
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)
    with trio.CancelScope(shield=True, deadline=trio.current_time() + _KILL_SECONDS):
        await process.wait()
    return obeyed


def tail(log: Path) -> str:
    """Return the last lines of a log."""
    with log.open("rb") as file:
        file.seek(max(0, log.stat().st_size - _TAIL_BYTES))
        lines = file.read().decode("utf-8", "replace").splitlines()
    return "\n".join(f"  {line[:300]}" for line in lines[-_TAIL_LINES:]) or "  (it wrote nothing)"
