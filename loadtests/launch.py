"""Start a server, wait until it answers, and stop it without leaving anything behind.

Every target gets the same fast BLAS on a Linux CPU, the same number of BLAS threads, the same number of
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
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, Final, TypeAlias

import httpx
import trio

from loadtests.client import Answer, ask
from loadtests.record import Outcome
from loadtests.targets import Launch, Preset, Target, build_body
from loadtests.workload import Ask
from scheduler.engine.mlx.cpu.fast_blas import BlasChoice, default_threads
from scheduler.models.kept_folder import MANIFEST
from scheduler.processes.process import Exit

Note: TypeAlias = Callable[[str], None]
"""Called with a line about each event."""
ROOT: Final = Path(__file__).parents[1]
SLOTS: Final = 32
_POLL_SECONDS = 0.1
_KILL_SECONDS = 5.0
"""A killed process is gone immediately, unless the kernel blocks it."""
_SWEEP_SECONDS = 30.0
_NICENESS = 5
_TAIL_LINES, _TAIL_BYTES = 20, 16_384
_OURS_TO_SET = ("PYTHON", "VIRTUAL_ENV", "PENSTOCK_", "HF_", "XDG_", "LD_PRELOAD", "OPENBLAS_", "RAPID_MLX_")
"""The caller's values of these variables must not reach some targets and not others."""


class LaunchError(Exception):
    """A target could not be started; the message has the last lines of its log."""


@dataclass(frozen=True, slots=True)
class Bench:
    """What all targets of a comparison have in common."""

    model: Path
    """The model's folder."""
    blas: BlasChoice
    slots: int = SLOTS
    start_seconds: float = 600.0
    """Bound on the time until the first completion is whole; this includes reading a large model."""
    stop_seconds: float = 30.0
    """Time from SIGTERM until its process group is killed."""


@asynccontextmanager
async def process(
    name: str,
    command: Sequence[str],
    environment: Mapping[str, str],
    log: Path,
    note: Note,
    stop_seconds: float = 30.0,
    folder: Path | None = None,
) -> AsyncIterator[trio.Process]:
    """Run a server's process during the block, with its output in `log`. If it dies meanwhile, `note` is
    called. Raise LaunchError if there is no such program."""
    try:
        with log.open("wb") as output:
            started = await trio.lowlevel.open_process(
                list(command),
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                env=dict(environment),
                cwd=folder,
                # A process group of its own, to be killed as a whole; Ctrl-C must not reach it.
                start_new_session=True,
            )
    except OSError as error:
        raise LaunchError(f"{name}: cannot start the server: {error}") from error
    has_run = False
    try:
        yield started
        has_run = True
    finally:
        if has_run and started.poll() is not None:
            note(f"{name}: the server {Exit(started.returncode or 0)}; its log ends:\n{tail(log)}")
        if not await _stop(started, stop_seconds):
            note(f"{name}: killed; it did not stop within {stop_seconds:g} s")


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


async def wait_ready(name: str, process: trio.Process, url: str, log: Path, seconds: float) -> None:
    """Wait until `url` is answered with 200. Raise LaunchError."""
    with trio.move_on_after(seconds):
        async with httpx.AsyncClient(timeout=None, trust_env=False) as http:
            while process.poll() is None:
                with suppress(httpx.TransportError):
                    if (await http.get(url)).status_code == 200:
                        return
                await trio.sleep(_POLL_SECONDS)
        raise LaunchError(f"{name}: the server {Exit(process.returncode or 0)}:\n{tail(log)}")
    raise LaunchError(f"{name}: no answer within {seconds:g} s:\n{tail(log)}")


@asynccontextmanager
async def servers(
    choices: Sequence[Target | Launch], bench: Bench, note: Note
) -> AsyncIterator[tuple[Target, ...]]:
    """Yield all targets, in their order; those to be launched run during the block.

    All run at the same time, so that they can be measured in turn; those not being measured are idle. Raise
    LaunchError if one does not start or does not answer; what can be known without starting a server is known
    before the first one is started.
    """
    for choice in choices:
        if isinstance(choice, Launch):
            program(choice)
            if not bench.model.is_dir():
                raise LaunchError(f"{choice.name}: --model {bench.model} is not a folder")
    running = [one if isinstance(one, Launch) else await find_model(one) for one in choices]
    for target in running:
        if isinstance(target, Target):
            await _answering(target, bench.start_seconds)
    async with AsyncExitStack() as stack:
        yield tuple(
            [
                await stack.enter_async_context(server(one, bench, note)) if isinstance(one, Launch) else one
                for one in running
            ]
        )


@asynccontextmanager
async def server(launch: Launch, bench: Bench, note: Note) -> AsyncIterator[Target]:
    """Yield a target that has started and answered; stop it behind the block. Raise LaunchError if it did not
    start."""
    port, preset = free_port(), launch.preset
    url = f"http://127.0.0.1:{port}"
    target = Target(
        name=launch.name,
        url=url,
        model=preset.model,
        knows=preset.knows,
        metrics_url=url + preset.metrics_path if preset.metrics_path else None,
        eos_token_ids=() if "ignore_eos" in preset.knows else end_tokens(bench.model),
    )
    folder = Path(tempfile.mkdtemp(prefix="penstock-target-"))
    try:
        root = ROOT if launch.commit is None else _checkout(launch, folder / "checkout")
        # Servers run at a lower priority than the load generator. A server that takes every core would delay
        # the generator, whose lateness would count as the server's.
        command = ["nice", "-n", str(_NICENESS), *program(launch), *arguments(launch, bench, port)]
        note(f"{launch.name}: starting {preset.name}")
        started, log = trio.current_time(), folder / "log"
        variables = environment(os.environ, folder, preset, bench.blas, root)
        async with process(launch.name, command, variables, log, note, bench.stop_seconds, folder) as running:
            ready = url + preset.ready_path
            await wait_ready(launch.name, running, ready, log, bench.start_seconds)
            # Some servers report ready before their model is; only a completion shows it.
            await _answering(target, bench.start_seconds, log)
            note(f"{launch.name}: ready after {trio.current_time() - started:.1f} s")
            yield target
    finally:
        if launch.commit is not None:
            _git("worktree", "remove", "--force", str(folder / "checkout"), check=False)
        with trio.CancelScope(shield=True, deadline=trio.current_time() + _SWEEP_SECONDS):
            # In a thread: the caches that peers write when they stop may be gigabytes.
            sweep = partial(shutil.rmtree, folder, ignore_errors=True)
            await trio.to_thread.run_sync(sweep, abandon_on_cancel=True)


def _checkout(launch: Launch, folder: Path) -> Path:
    made = _git("worktree", "add", "--detach", str(folder), str(launch.commit), check=False)
    if made.returncode:
        raise LaunchError(f"{launch.name}: commit={launch.commit}: {made.stderr.strip()}")
    return folder


def _git(*arguments: str, check: bool) -> subprocess.CompletedProcess[str]:
    return subprocess.run(["git", "-C", ROOT, *arguments], capture_output=True, text=True, check=check)


def program(launch: Launch) -> list[str]:
    """Return the program that is the server. Raise LaunchError if it does not exist."""
    preset = launch.preset
    if preset.is_ours:
        return [sys.executable, "-m", "api"]
    if given := os.environ.get(preset.variable):
        path = Path(given).expanduser().absolute()
        found = path / "bin" / preset.name if path.is_dir() else path
        if not found.is_file():
            raise LaunchError(f"{launch.name}: there is no {found}")
        return [str(found)]
    beside = Path(sys.executable).with_name(preset.name)
    if on_path := shutil.which(preset.name) or (str(beside) if beside.is_file() else None):
        return [on_path]
    raise LaunchError(
        f"{launch.name}: no program {preset.name!r} on PATH; set {preset.variable} to its virtual "
        "environment (loadtests/peers/README.md says how to make one)"
    )


def arguments(launch: Launch, bench: Bench, port: int) -> list[str]:
    values = {
        "model": str(bench.model.resolve()),
        "port": str(port),
        "slots": str(bench.slots),
    }
    return [*(argument.format_map(values) for argument in launch.preset.arguments), *launch.arguments]


def environment(
    base: Mapping[str, str], home: Path, preset: Preset, blas: BlasChoice, root: Path
) -> dict[str, str]:
    """Return the target's environment: no variable of the caller's that could favour one, and no network.
    `root` has our packages, of which a peer must find none."""
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
    return {**kept, "PYTHONPATH": str(root)} if preset.is_ours else blas.environment(kept)


def free_port() -> int:
    """Return a port that was free a moment ago; a server that finds it taken exits with an error."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])


def end_tokens(model: Path) -> tuple[int, ...]:
    """Return the tokens that end an answer of this model; none for our random weights, which do not produce
    them by chance, so that no target pays for a logit bias there."""
    if "shape" in _json(model / MANIFEST):
        return ()
    for name in ("generation_config.json", "config.json"):
        tokens = _json(model / name).get("eos_token_id")
        if isinstance(tokens, int | list):
            return tuple(tokens) if isinstance(tokens, list) else (tokens,)
    return ()


def _json(path: Path) -> dict[str, Any]:
    """Return the file's object; an empty one for anything else."""
    with suppress(OSError, ValueError):
        if isinstance(found := json.loads(path.read_text("utf-8")), dict):
            return found
    return {}


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


async def _answering(target: Target, seconds: float, log: Path | None = None) -> None:
    """Return when one short completion is whole. Raise LaunchError."""
    wish = Ask(({"role": "user", "content": "ready?"},), 4, exact=False, sampling={"temperature": 0.0})
    body, answer = build_body(wish, target), Answer()
    async with httpx.AsyncClient(timeout=None, trust_env=False) as http:
        await ask(http, target.url_of(), body, answer, target.headers, seconds)
    if answer.outcome is not Outcome.OK:
        status = "" if answer.status is None else f"{answer.status} "
        why = f"{target.url} does not answer: {answer.outcome.value}: {status}{answer.detail}"
        raise LaunchError(f"{target.name}: {why}" + (f"\n{tail(log)}" if log else ""))


def tail(log: Path) -> str:
    """Return the last lines of a log."""
    with log.open("rb") as file:
        file.seek(max(0, log.stat().st_size - _TAIL_BYTES))
        lines = file.read().decode("utf-8", "replace").splitlines()
    return "\n".join(f"  {line[:300]}" for line in lines[-_TAIL_LINES:]) or "  (it wrote nothing)"
