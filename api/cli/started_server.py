"""A server that a command starts for itself and ends with itself: `penstock serve` as a child process."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass
from pathlib import Path

import httpx
from rich.console import Console

from api.access.api_keys import DEFAULT_TENANT, client_key
from api.cli.errors import OperatorError
from api.cli.running_server import Address, NoServer, RunningServer, find
from scheduler.processes.process import Exit
from scheduler.shared.own_path import with_own_path
from scheduler.shared.user_cache import user_cache_folder

_LISTENING = re.compile(r"^listening  (http://\S+)", re.M)
"""What `penstock serve` prints when an engine is ready (`api/announcement.py`)."""
_DOING = re.compile(
    r"^download   (.+)$|^(\S+ \S+ of \S+ \S+, .+/s)$|engine_loading .*\bstage='?([^'\n]+)", re.M
)
"""What it prints and logs before that."""
_POLL_SECONDS = 0.1
_DRAIN_SECONDS = 1.0
"""A short drain is enough: the command that sent requests has ended."""
_STOP_SECONDS = 10.0
"""Time from SIGTERM until its process group is killed."""
_LOGS_KEPT = 8
_TAIL_LINES = 12
_TAIL_BYTES = 16_384
_LINE_CHARACTERS = 300


@dataclass(frozen=True, slots=True)
class ServerStart:
    """How the child is started."""

    arguments: tuple[str, ...]
    """Arguments of `penstock serve`, as the user gave them."""
    key: str | None
    environment: Mapping[str, str]

    @property
    def command(self) -> list[str]:
        # The user's own arguments come last, so that they prevail.
        ours = ["serve", "--host", "127.0.0.1", "--port", "0", "--drain-seconds", f"{_DRAIN_SECONDS:g}"]
        return [sys.executable, "-m", "api.cli.child_server", *ours, *self.arguments]

    @property
    def child_environment(self) -> dict[str, str]:
        child = {**with_own_path(self.environment), "PYTHONUNBUFFERED": "1"}
        child.pop("PENSTOCK_URL", None)
        if self.key is not None and client_key(child.get("PENSTOCK_API_KEY", "")) != self.key:
            child["PENSTOCK_API_KEY"] = f"{DEFAULT_TENANT}:{self.key} admin"
        return child


@contextmanager
def found_or_started(
    where: Address, arguments: Sequence[str], console: Console, environment: Mapping[str, str]
) -> Iterator[RunningServer]:
    """Use the server at `where`. If there is none at the default address, start one, which ends when the
    block is left.

    `arguments` are those of `penstock serve`. Raise OperatorError, with the end of the server's log if it did
    not start.
    """
    try:
        server = find(where)
    except NoServer as error:
        if where.given:
            raise OperatorError(f"{error}; `penstock serve` starts one") from error
    else:
        yield server
        return
    with started(ServerStart(tuple(arguments), where.key, environment), console) as server:
        yield server


@contextmanager
def started(start: ServerStart, console: Console) -> Iterator[RunningServer]:
    """Start a server and wait until it is ready; end it when the block is left, however that happens.

    The server also ends if this process is killed: it reads a pipe that closes then (`child_server.py`).
    Progress goes to `console`, if that is a terminal. The log is kept only if the server ended by itself.
    """
    log = _new_log(user_cache_folder(start.environment) / "logs")
    with log.open("wb") as output:
        try:
            child = subprocess.Popen(
                start.command,
                stdin=subprocess.PIPE,
                stdout=output,
                stderr=subprocess.STDOUT,
                env=start.child_environment,
                # Ctrl-C in the terminal is for the command; the child's own group can be killed as a whole.
                start_new_session=True,
            )
        except OSError as error:
            raise OperatorError(f"cannot start a server: {error}") from error
    try:
        url = _wait_ready(child, log, console)
        yield find(Address(url, start.key))
    finally:
        has_failed = child.poll() is not None
        _end(child)
        if not has_failed:
            log.unlink(missing_ok=True)


def _new_log(folder: Path) -> Path:
    """Create and return an empty file that only this user can read; delete the oldest ones."""
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        for old in sorted(folder.glob("server-*.log"), key=_written)[: 1 - _LOGS_KEPT]:
            old.unlink(missing_ok=True)
        path = folder / f"server-{os.getpid()}.log"
        path.unlink(missing_ok=True)
        path.touch(mode=0o600)
    except OSError as error:
        raise OperatorError(f"cannot write a server's log to {folder}: {error}") from error
    return path


def _written(path: Path) -> float:
    # Another command may have deleted it.
    with suppress(OSError):
        return path.stat().st_mtime
    return 0.0


def _wait_ready(child: subprocess.Popen[bytes], log: Path, console: Console) -> str:
    """Wait until the server is ready, and return its address. Raise OperatorError if it ends first."""
    begun = time.monotonic()
    terminal = console.is_terminal
    with console.status("starting a server") if terminal else nullcontext() as status:
        while True:
            if child.poll() is not None:
                ended = f"the server that was started {Exit(child.returncode)}"
                raise OperatorError(f"{ended}; its log ({log}) ends:\n{tail(log)}")
            if (found := _LISTENING.search(log.read_text("utf-8", "replace"))) and _is_ready(found[1]):
                return found[1]
            if status is not None:
                seconds = time.monotonic() - begun
                doing = f", {what}" if (what := _doing(log)) else ""
                status.update(f"starting a server: {seconds:.0f} s{doing} (Ctrl-C ends it; its log: {log})")
            time.sleep(_POLL_SECONDS)


def _doing(log: Path) -> str:
    """Return what the server does, by its last line that says so: what it fetches, or how far a load is."""
    found = _DOING.findall(log.read_text("utf-8", "replace"))
    return next(filter(None, found[-1])) if found else ""


def _is_ready(url: str) -> bool:
    try:
        return httpx.get(f"{url}/ready", timeout=10.0, trust_env=False).status_code == 200
    except httpx.HTTPError:
        return False


def _end(child: subprocess.Popen[bytes]) -> None:
    """Send SIGTERM and wait; then send SIGKILL to the child's process group, at the latest after the deadline
    or on Ctrl-C."""
    try:
        with suppress(ProcessLookupError):
            child.terminate()
        child.wait(_STOP_SECONDS)
    except subprocess.TimeoutExpired:
        pass
    finally:
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(child.pid, signal.SIGKILL)
        child.wait()
        if child.stdin is not None:
            child.stdin.close()


def tail(log: Path) -> str:
    """Return the last lines of a log."""
    with log.open("rb") as file:
        file.seek(max(0, log.stat().st_size - _TAIL_BYTES))
        lines = file.read().decode("utf-8", "replace").splitlines()
    return (
        "\n".join(f"  {line[:_LINE_CHARACTERS]}" for line in lines[-_TAIL_LINES:]) or "  (it wrote nothing)"
    )
