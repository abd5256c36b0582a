"""The service managers' own commands: to start and stop a service, and to read its state and its log."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Protocol

from api.cli.errors import OperatorError
from api.cli.process_table import tree
from api.cli.service.service_options import Platform, ServiceFiles, label
from scheduler.engine.budget.readings import MacMemory

_COMMAND_SECONDS = 60.0
_STOP_SECONDS = 3700.0
"""Longer than any drain: both managers kill a service that outlives its stop timeout."""
_POLL_SECONDS = 0.2
_BOOTSTRAP_SECONDS = 30.0
_SHOWN = "ActiveState,SubState,NRestarts,LoadState,Job,MainPID,MemoryCurrent"
_STILL_THERE = (5, 37)
"""Exit codes of `launchctl bootstrap` while the previous job has not quite ended: input/output error,
operation already in progress."""
_NO_DOMAIN = 125
"""Its exit code if the domain does not exist: the user has no desktop login."""


@dataclass(frozen=True, slots=True)
class ManagerState:
    """What the manager says of the service."""

    text: str
    """The state, as in `active (running)`."""
    is_active: bool
    """Whether it runs or is being started; if not, waiting for it is useless."""
    restarts: int | None
    pid: int | None = None
    memory_bytes: int | None = None
    """Memory of all its processes, or None if unknown."""


class Manager(Protocol):
    def start(self) -> None:
        """Start the installed service, now and at each login or boot, without waiting until it is ready. A
        running one is drained first."""
        ...

    def stop(self) -> None:
        """Stop the service and its starts at login or boot, and return when its drain has ended. Do nothing
        if it does not exist."""
        ...

    def reread(self) -> None:
        """Forget a unit whose file is gone."""
        ...

    def state(self) -> ManagerState: ...

    def log_command(self, lines: int, *, follow: bool) -> list[str]: ...


class Systemd:
    def __init__(self, name: str, folder: Path, *, system: bool) -> None:
        """`folder` holds its units. An engine has no socket unit."""
        self._name = name
        self._folder = folder
        self._units = [f"{name}.socket", f"{name}.service"]
        self._scope = [] if system else ["--user"]

    def start(self) -> None:
        self.reread()
        units = [unit for unit in self._units if (self._folder / unit).exists()]
        self._ask("enable", *units)
        self._ask("reset-failed", *units, may_fail=True)
        *sockets, service = units
        if sockets:
            self._ask("start", *sockets)
        self._ask("restart", "--no-block", service)

    def stop(self) -> None:
        self._ask("disable", "--now", *self._units, seconds=_STOP_SECONDS, may_fail=True)

    def reread(self) -> None:
        self._ask("daemon-reload")

    def state(self) -> ManagerState:
        return systemd_state(self._ask("show", f"{self._name}.service", "-p", _SHOWN, may_fail=True))

    def log_command(self, lines: int, *, follow: bool) -> list[str]:
        whose = "--user-unit" if self._scope else "--unit"
        return ["journalctl", whose, self._name, "-n", str(lines), "-f" if follow else "--no-pager"]

    def _ask(self, *words: str, seconds: float = _COMMAND_SECONDS, may_fail: bool = False) -> str:
        return _run(["systemctl", *self._scope, *words], seconds=seconds, may_fail=may_fail)


def systemd_state(text: str) -> ManagerState:
    """Read what `systemctl show` prints."""
    shown = dict(line.split("=", 1) for line in text.splitlines() if "=" in line)
    active, restarts = shown.get("ActiveState", "unknown"), shown.get("NRestarts", "")
    if shown.get("LoadState") == "not-found":
        return ManagerState("not installed", False, None)
    return ManagerState(
        f"{active} ({shown.get('SubState', '?')})",
        # A start that waits for other units is a job of a unit that is still inactive.
        active in ("active", "activating", "reloading") or shown.get("Job", "0") not in ("", "0"),
        int(restarts) if restarts.isdigit() else None,
        _number(shown.get("MainPID", "")) or None,
        _number(shown.get("MemoryCurrent", "")),
    )


def _number(text: str) -> int | None:
    return int(text) if text.isdigit() else None


class Launchd:
    """A user's launchd agent, or a daemon of the machine. launchd holds no socket for it: after one process
    has ended, connections are refused until the next one listens."""

    def __init__(self, name: str, places: ServiceFiles, *, system: bool) -> None:
        self._places = places
        self._label = label(name)
        # A user logged in at the screen has the first domain; one with only ssh, or at boot, has the second.
        self._domains = ("system",) if system else (f"gui/{os.getuid()}", f"user/{os.getuid()}")

    def start(self) -> None:
        self.stop()
        for domain in self._domains:
            _run(["launchctl", "enable", f"{domain}/{self._label}"], may_fail=True)
            if self._bootstrap(domain):
                return
        raise OperatorError(
            f"launchd has no domain of this user ({', '.join(self._domains)}): log in once at the screen, or"
            " install with --system"
        )

    def _bootstrap(self, domain: str) -> bool:
        """Start the job in the domain, or return False if there is no such domain. Raise OperatorError."""
        command = ["launchctl", "bootstrap", domain, str(self._places.unit)]
        end = time.monotonic() + _BOOTSTRAP_SECONDS
        while (done := _done(command)).returncode:
            if done.returncode == _NO_DOMAIN:
                return False
            if done.returncode not in _STILL_THERE or time.monotonic() > end:
                raise _failed(command, done)
            time.sleep(_POLL_SECONDS)
        return True

    def stop(self) -> None:
        for domain in self._domains:
            target = f"{domain}/{self._label}"
            _run(["launchctl", "bootout", target], may_fail=True)
            # bootout returns before the job has ended: the job is draining.
            end = time.monotonic() + _STOP_SECONDS
            while self._printed(target):
                if time.monotonic() > end:
                    raise OperatorError(f"{target} has not ended in {_STOP_SECONDS:g} s")
                time.sleep(_POLL_SECONDS)

    def reread(self) -> None:
        """Do nothing: launchd has forgotten the job already."""

    def state(self) -> ManagerState:
        printed = (self._printed(f"{domain}/{self._label}") for domain in self._domains)
        state = launchd_state(next(filter(None, printed), ""))
        return state if state.pid is None else replace(state, memory_bytes=_memory_bytes(state.pid))

    def log_command(self, lines: int, *, follow: bool) -> list[str]:
        # -F follows the name: a new file replaces the log when it has its size.
        return ["tail", *(["-F"] if follow else []), "-n", str(lines), str(self._places.log)]

    def _printed(self, target: str) -> str:
        """Return launchd's description of the job, or an empty string if there is none."""
        done = _done(["launchctl", "print", target])
        return "" if done.returncode else done.stdout


def launchd_state(text: str) -> ManagerState:
    """Read what `launchctl print` prints, but only the lines of the outermost block, which have one tab:
    inner blocks have a `state`, too."""
    lines = (line[1:] for line in text.splitlines() if line.startswith("\t") and not line.startswith("\t\t"))
    shown = dict(line.split(" = ", 1) for line in lines if " = " in line)
    if "state" not in shown:
        return ManagerState("not installed", False, None)
    runs = shown.get("runs", "")
    restarts = max(0, int(runs) - 1) if runs.isdigit() else None
    failed = shown.get("last exit code", "0").split(":")[0] not in ("0", "(never exited)")
    is_coming = shown["state"] in ("running", "spawn scheduled")
    words = shown["state"] + (f", last exit code {shown['last exit code']}" if failed else "")
    return ManagerState(words, is_coming or not failed, restarts, _number(shown.get("pid", "")))


def _memory_bytes(pid: int) -> int | None:
    """Return the memory of a service's processes, or None if another user owns them. launchd does not count
    it, and `ps` leaves out what Metal holds, which is the model."""
    if sys.platform == "darwin":
        memory = MacMemory()
        footprints = [memory.footprint_bytes(one) for one in tree(pid)]
        # One that has just ended holds nothing.
        return sum(filter(None, footprints)) if footprints[0] is not None else None
    else:
        return None


def manager_of(platform: Platform, name: str, places: ServiceFiles, *, system: bool) -> Manager:
    """Return the service manager. Raise OperatorError if it does not run on this machine."""
    match platform:
        case Platform.SYSTEMD:
            if shutil.which("systemctl") is None or not Path("/run/systemd/system").exists():
                raise OperatorError(
                    "systemd does not run on this machine: start penstock serve from what does, which may\n"
                    "hand its sockets over as systemd does (LISTEN_FDS)"
                )
            return Systemd(name, places.unit.parent, system=system)
        case Platform.LAUNCHD:
            if Platform.of(sys.platform) is not Platform.LAUNCHD:
                raise OperatorError("launchd is there on macOS only")
            return Launchd(name, places, system=system)


def _run(command: Sequence[str], *, seconds: float = _COMMAND_SECONDS, may_fail: bool = False) -> str:
    """Run a command and return its output. Raise OperatorError with the end of its stderr if it failed."""
    done = _done(command, seconds)
    if done.returncode and not may_fail:
        raise _failed(command, done)
    return done.stdout


def _done(command: Sequence[str], seconds: float = _COMMAND_SECONDS) -> subprocess.CompletedProcess[str]:
    try:
        return subprocess.run(
            command, capture_output=True, text=True, timeout=seconds, check=False, stdin=subprocess.DEVNULL
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise OperatorError(f"{' '.join(command)}: {error}") from error


def _failed(command: Sequence[str], done: subprocess.CompletedProcess[str]) -> OperatorError:
    last_lines = (done.stderr or done.stdout).strip().splitlines()[-2:]
    return OperatorError(f"{' '.join(command)} failed: " + "\n".join(last_lines or ["without a word"]))
