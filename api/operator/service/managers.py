"""The service managers' own commands: start, stop, what they know, and where the log is."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from api.operator.errors import OperatorError
from api.operator.service.launchd_plist import plist
from api.operator.service.service_options import Places, Platform, ServiceOptions, label
from api.operator.service.systemd_unit import unit_text

_COMMAND_SECONDS = 60.0


@dataclass(frozen=True, slots=True)
class ManagerState:
    """What the manager says of the service."""

    text: str
    """As `active (running)`."""
    is_active: bool
    """It runs or is being started; otherwise nothing will come of waiting."""
    restarts: int | None


class Manager(Protocol):
    def start(self) -> None:
        """Start the unit that was written, now and at each login or boot, without waiting for it."""
        ...

    def stop(self) -> None:
        """Stop it, after its drain, and start it no more. Nothing happens if it is not there."""
        ...

    def reread(self) -> str:
        """The unit has changed while the service runs. Return what the operator should know."""
        ...

    def state(self) -> ManagerState: ...

    def log_command(self, lines: int, *, follow: bool) -> list[str]: ...

    def hints(self) -> list[str]:
        """What the operator should know after an installation."""
        ...


class Systemd:
    def __init__(self, name: str, *, system: bool) -> None:
        self._name = name
        self._system = system
        self._systemctl = ["systemctl"] if system else ["systemctl", "--user"]

    def start(self) -> None:
        _run([*self._systemctl, "daemon-reload"])
        _run([*self._systemctl, "enable", self._name])
        _run([*self._systemctl, "reset-failed", self._name], may_fail=True)
        _run([*self._systemctl, "start", "--no-block", self._name])

    def stop(self) -> None:
        _run([*self._systemctl, "disable", "--now", self._name], seconds=3700, may_fail=True)

    def reread(self) -> str:
        _run([*self._systemctl, "daemon-reload"])
        return ""

    def state(self) -> ManagerState:
        text = _run(
            [*self._systemctl, "show", self._name, "-p", "ActiveState,SubState,NRestarts,LoadState,Job"],
            may_fail=True,
        )
        return systemd_state(text)

    def log_command(self, lines: int, *, follow: bool) -> list[str]:
        scope = ["--unit"] if self._system else ["--user-unit"]
        return ["journalctl", *scope, self._name, "-n", str(lines), *(["-f"] if follow else ["--no-pager"])]

    def hints(self) -> list[str]:
        if self._system or shutil.which("loginctl") is None:
            return []
        user = str(os.getuid())
        lingers = _run(["loginctl", "show-user", user, "-p", "Linger", "--value"], may_fail=True).strip()
        if lingers == "yes":
            return []
        return ["it ends when you log out, and starts when you log in: loginctl enable-linger changes that"]


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
    )


class Launchd:
    def __init__(self, name: str, places: Places, *, system: bool) -> None:
        self._places = places
        self._domain = "system" if system else f"gui/{os.getuid()}"
        self._target = f"{self._domain}/{label(name)}"

    def start(self) -> None:
        # One that was loaded before keeps its old plist otherwise.
        _run(["launchctl", "bootout", self._target], may_fail=True)
        _run(["launchctl", "enable", self._target])
        _run(["launchctl", "bootstrap", self._domain, str(self._places.unit)])

    def stop(self) -> None:
        _run(["launchctl", "bootout", self._target], seconds=3700, may_fail=True)

    def reread(self) -> str:
        return "launchd reads the new plist at the next login; until then a restart starts the old one"

    def state(self) -> ManagerState:
        return launchd_state(_run(["launchctl", "print", self._target], may_fail=True))

    def log_command(self, lines: int, *, follow: bool) -> list[str]:
        assert self._places.log is not None
        # By name: the file is replaced when it has its size.
        return ["tail", *(["-F"] if follow else []), "-n", str(lines), str(self._places.log)]

    def hints(self) -> list[str]:
        return []


def launchd_state(text: str) -> ManagerState:
    """Read what `launchctl print` prints: the lines of the outermost block."""
    shown = dict(line.strip().split(" = ", 1) for line in text.splitlines() if line.count(" = ") == 1)
    if "state" not in shown:
        return ManagerState("not installed", False, None)
    runs = shown.get("runs", "")
    restarts = max(0, int(runs) - 1) if runs.isdigit() else None
    failed = shown.get("last exit code", "0").split(":")[0] not in ("0", "(never exited)")
    running = shown["state"] == "running"
    text = shown["state"] + (f", last exit code {shown['last exit code']}" if failed else "")
    return ManagerState(text, running or not failed, restarts)


def manager_of(platform: Platform, name: str, places: Places, *, system: bool) -> Manager:
    """Raise OperatorError where there is no such manager."""
    match platform:
        case Platform.SYSTEMD:
            if shutil.which("systemctl") is None or not Path("/run/systemd/system").exists():
                raise OperatorError(
                    "systemd does not run on this machine: start penstock service run from what does\n"
                    "(penstock service upgrade works there, too)"
                )
            return Systemd(name, system=system)
        case Platform.LAUNCHD:
            if Platform.of(sys.platform) is not Platform.LAUNCHD:
                raise OperatorError("launchd is there on macOS only")
            return Launchd(name, places, system=system)


def unit_of(options: ServiceOptions, places: Places) -> bytes:
    """Return what the unit's file holds."""
    match options.platform:
        case Platform.SYSTEMD:
            return unit_text(options, places).encode()
        case Platform.LAUNCHD:
            return plist(options, places)


def _run(command: Sequence[str], *, seconds: float = _COMMAND_SECONDS, may_fail: bool = False) -> str:
    """Return what it printed. Raise OperatorError with what it said if it failed."""
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=seconds, check=False, stdin=subprocess.DEVNULL
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise OperatorError(f"{' '.join(command)}: {error}") from error
    if done.returncode and not may_fail:
        said = (done.stderr or done.stdout).strip().splitlines()[-2:]
        raise OperatorError(f"{' '.join(command)} failed: " + "\n".join(said or ["without a word"]))
    return done.stdout
