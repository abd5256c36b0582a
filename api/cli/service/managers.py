"""The service managers' own commands: to start and stop a service, and to read its state and its log."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias

from api.cli.errors import OperatorError
from api.cli.process_table import tree
from api.cli.service.service_options import Platform, label, places_of
from scheduler.engine.budget.readings import MacMemory

_COMMAND_SECONDS = 60.0
_STOP_SECONDS = 3700.0
"""Longer than any drain: both managers kill a service that outlives its stop timeout."""
_BOOTSTRAP_SECONDS = 30.0
_POLL_SECONDS = 0.2
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


_NOT_INSTALLED = ManagerState("not installed", False, None)


class Systemd:
    platform = Platform.SYSTEMD

    def __init__(self, name: str, *, system: bool) -> None:
        self.name, self.system = name, system
        self.places = places_of(name, self.platform, system=system, environment=os.environ)
        self._units = (self.places.socket, self.places.unit)
        self._scope = [] if system else ["--user"]

    def check(self) -> None:
        """Raise OperatorError if it does not run on this machine."""
        if shutil.which("systemctl") is None or not Path("/run/systemd/system").exists():
            raise OperatorError(
                "systemd does not run on this machine: start penstock serve from what does, which may\n"
                "hand its sockets over as systemd does (LISTEN_FDS)"
            )

    def start(self) -> None:
        """Start the installed service, now and at each login or boot, without waiting until it is ready. A
        running one is drained first. An engine has no sockets."""
        self.reread()
        *sockets, service = (unit.name for unit in self._units if unit.exists())
        self._ask("enable", *sockets, service)
        self._ask("reset-failed", *sockets, service, may_fail=True)
        if sockets:
            self._ask("start", *sockets)
        self._ask("restart", "--no-block", service)

    def stop(self) -> None:
        """Stop the service and its starts at login or boot, and return when its drain has ended. Do nothing
        if it does not exist."""
        names = (unit.name for unit in self._units)
        self._ask("disable", "--now", *names, seconds=_STOP_SECONDS, may_fail=True)

    def reread(self) -> None:
        """Forget a unit whose file is gone."""
        self._ask("daemon-reload")

    def state(self) -> ManagerState:
        printed = self._ask("show", self.places.unit.name, "-p", _SHOWN, may_fail=True)
        shown = dict(re.findall(r"^(\w+)=(.*)$", printed, re.MULTILINE))
        if shown.get("LoadState") == "not-found":
            return _NOT_INSTALLED
        active, job = shown.get("ActiveState", "unknown"), shown.get("Job", "0")
        return ManagerState(
            f"{active} ({shown.get('SubState', '?')})",
            # A start that waits for other units is a job of a unit that is still inactive.
            active in ("active", "activating", "reloading") or job not in ("", "0"),
            _number(shown, "NRestarts"),
            _number(shown, "MainPID") or None,
            _number(shown, "MemoryCurrent"),
        )

    def log_command(self, lines: int, *, follow: bool) -> list[str]:
        whose = "--user-unit" if self._scope else "--unit"
        return ["journalctl", whose, self.name, "-n", str(lines), "-f" if follow else "--no-pager"]

    def _ask(self, *words: str, seconds: float = _COMMAND_SECONDS, may_fail: bool = False) -> str:
        return _asked("systemctl", *self._scope, *words, seconds=seconds, may_fail=may_fail).stdout


class Launchd:
    """A user's launchd agent, or a daemon of the machine. launchd holds no socket for it: after one process
    has ended, connections are refused until the next one listens. The methods do what those of Systemd do."""

    platform = Platform.LAUNCHD

    def __init__(self, name: str, *, system: bool) -> None:
        self.name, self.system = name, system
        self.places = places_of(name, self.platform, system=system, environment=os.environ)
        # A user logged in at the screen has the first domain; one with only ssh, or at boot, has the second.
        self._domains = ("system",) if system else (f"gui/{os.getuid()}", f"user/{os.getuid()}")

    def check(self) -> None:
        """Do nothing: each Mac has launchd."""

    def start(self) -> None:
        self.stop()
        for domain in self._domains:
            _asked("launchctl", "enable", self._target(domain), may_fail=True)
            if self._bootstrap(domain):
                return
        raise OperatorError(
            f"launchd has no domain of this user ({', '.join(self._domains)}): log in once at the screen, or"
            " install with --system"
        )

    def _bootstrap(self, domain: str) -> bool:
        """Start the job in the domain, or return False if there is no such domain. Raise OperatorError."""
        for _ in polls(_BOOTSTRAP_SECONDS):
            done = _asked("launchctl", "bootstrap", domain, str(self.places.unit), may_fail=True)
            if done.returncode not in _STILL_THERE:
                break
        if done.returncode not in (0, _NO_DOMAIN):
            raise _failed(done)
        return done.returncode == 0

    def stop(self) -> None:
        for domain in self._domains:
            target = self._target(domain)
            _asked("launchctl", "bootout", target, may_fail=True)
            # bootout returns before the job has ended: the job is draining.
            for _ in polls(_STOP_SECONDS):
                if not self._printed(target):
                    break
            else:
                raise OperatorError(f"{target} has not ended in {_STOP_SECONDS:g} s")

    def reread(self) -> None:
        """Do nothing: launchd has forgotten the job already."""

    def state(self) -> ManagerState:
        printed = next(filter(None, (self._printed(self._target(domain)) for domain in self._domains)), "")
        # Lines of the outermost block have one tab: inner blocks have a `state`, too.
        shown = dict(re.findall(r"^\t(\S.*?) = (.*)$", printed, re.MULTILINE))
        if "state" not in shown:
            return _NOT_INSTALLED
        runs, pid, text = _number(shown, "runs"), _number(shown, "pid"), shown["state"]
        if has_failed := shown.get("last exit code", "0").split(":")[0] not in ("0", "(never exited)"):
            text += f", last exit code {shown['last exit code']}"
        return ManagerState(
            text,
            not has_failed or shown["state"] in ("running", "spawn scheduled"),
            None if runs is None else max(0, runs - 1),
            pid,
            None if pid is None else _memory_bytes(pid),
        )

    def log_command(self, lines: int, *, follow: bool) -> list[str]:
        # -F follows the name: a new file replaces the log when it has its size.
        return ["tail", *(["-F"] if follow else []), "-n", str(lines), str(self.places.log)]

    def _target(self, domain: str) -> str:
        return f"{domain}/{label(self.name)}"

    def _printed(self, target: str) -> str:
        """Return launchd's description of the job, or an empty string if there is none."""
        done = _asked("launchctl", "print", target, may_fail=True)
        return "" if done.returncode else done.stdout


Manager: TypeAlias = Systemd | Launchd


def manager_of(name: str, *, system: bool) -> Manager:
    """Return this machine's manager for a service. Raise OperatorError for an invalid name."""
    return (Launchd if sys.platform == "darwin" else Systemd)(name, system=system)


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


def _number(shown: Mapping[str, str], name: str) -> int | None:
    text = shown.get(name, "")
    return int(text) if text.isdigit() else None


def polls(seconds: float) -> Iterator[None]:
    """Yield at each time to look again, the first at once, until `seconds` have passed."""
    end = time.monotonic() + seconds
    yield
    while time.monotonic() < end:
        time.sleep(_POLL_SECONDS)
        yield


def _asked(
    *command: str, seconds: float = _COMMAND_SECONDS, may_fail: bool = False
) -> subprocess.CompletedProcess[str]:
    """Run a command. Raise OperatorError if it cannot be run, or fails and may not."""
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=seconds, check=False, stdin=subprocess.DEVNULL
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise OperatorError(f"{' '.join(command)}: {error}") from error
    if done.returncode and not may_fail:
        raise _failed(done)
    return done


def _failed(done: subprocess.CompletedProcess[str]) -> OperatorError:
    last_lines = (done.stderr or done.stdout).strip().splitlines()[-2:]
    return OperatorError(f"{' '.join(done.args)} failed: " + "\n".join(last_lines or ["without a word"]))
