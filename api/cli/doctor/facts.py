"""The facts about this machine that a report of something broken needs: plain values, and where they are
from: a child process, a socket, folders, the last log."""

from __future__ import annotations

import os
import platform
import shutil
import socket
import sys
from collections.abc import Mapping, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass
from http.client import HTTPConnection, HTTPException
from pathlib import Path
from typing import Literal, TypeAlias

from api.cli.machine import Machine
from api.cli.models import disk_models
from api.cli.models.reading import PlannedModel, read
from api.options.back_end import installed_back_ends
from api.options.options import refuse_unknown_variables
from api.version import PACKAGE, Version, own_version, release_of
from scheduler.engine.budget.readings import system_reader
from scheduler.errors import OptionError
from scheduler.processes.machine_share import cores_of_process, gpus_of
from scheduler.shared.user_cache import user_cache_folder

_HOST = "127.0.0.1"
_ASK_SECONDS = 1.0
_PACKAGES = ("mlx", "mlx-lm", "transformers")
_LOG_BYTES = 1 << 16
_LOG_MARKS = ("[error", "[critical", "Traceback")
PortState: TypeAlias = Literal["free", "penstock", "taken", "refused"]
"""`refused`: no program listens there, and `serve` could not either, as on a port that needs root."""


@dataclass(frozen=True, slots=True)
class Port:
    number: int
    state: PortState
    remark: str = ""
    """Why it is refused, or what a Penstock there says of its health."""


@dataclass(frozen=True, slots=True)
class Disk:
    """A folder that serving writes to."""

    what: str
    folder: Path
    free_bytes: int
    writable: bool


@dataclass(frozen=True, slots=True)
class Log:
    """The newest log of a server in this user's cache, and its last line that is an error."""

    file: Path
    error: str = ""


@dataclass(frozen=True, slots=True)
class Facts:
    """What was found out about the machine. `available_bytes` is None if the system does not report it."""

    version: Version
    platform: str
    """sys.platform."""
    architecture: str
    """platform.machine()."""
    python: str
    packages: Mapping[str, str]
    """Releases of what computes; an empty one is not installed."""
    back_ends: tuple[str, ...] = ()
    """Packages that bring MLX's compiled library."""
    cards: int = 0
    """Number of NVIDIA cards that CUDA_VISIBLE_DEVICES names or, if it is not set, that the driver lists."""
    machine: Machine | None = None
    """The machine, or None if MLX does not work."""
    machine_error: str = ""
    limit_bytes: int = 0
    """Bytes that an engine may use by default with the first model that has a plan; 0 if there is no such
    model, or it does not fit."""
    physical_bytes: int = 0
    available_bytes: int | None = None
    cores: int = 1
    """Number of cores that this process may run on."""
    ports: tuple[Port, ...] = ()
    disks: tuple[Disk, ...] = ()
    variable_error: str = ""
    """The error that `serve` would raise for the PENSTOCK_ variables; empty without one."""
    models: tuple[PlannedModel, ...] = ()
    log: Log | None = None


def gather(ports: Sequence[int], folders: Sequence[Path]) -> Facts:
    """Return the facts. This takes some seconds, and more on a machine with many models."""
    found = read(disk_models.find(folders))
    caches = user_cache_folder(os.environ)
    return Facts(
        version=own_version(),
        platform=sys.platform,
        architecture=platform.machine(),
        python=platform.python_version(),
        packages={name: release_of(name) for name in _PACKAGES},
        back_ends=installed_back_ends(),
        cards=len(gpus_of(os.environ)),
        machine=found.machine,
        machine_error=found.reason,
        limit_bytes=next((one.plan.limit_bytes for one in found.models if one.plan is not None), 0),
        physical_bytes=os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
        available_bytes=system_reader()().available_bytes,
        cores=cores_of_process(),
        ports=tuple(port_fact(number) for number in ports),
        disks=(disk("models", disk_models.hub_cache()), disk("caches", caches)),
        variable_error=_variable_error(os.environ),
        models=found.models,
        log=last_log(caches / "logs"),
    )


def port_fact(number: int) -> Port:
    """Return the state of the port: connect to it, then bind it as `serve` would, on the loopback address."""
    # Connect first: macOS lets 127.0.0.1 be bound beside another program's *, which it then hides.
    with suppress(OSError):
        socket.create_connection((_HOST, number), _ASK_SECONDS).close()
        health = _health(number)
        return Port(number, "taken") if health is None else Port(number, "penstock", health)
    with closing(socket.socket()) as trial:
        trial.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            trial.bind((_HOST, number))
            trial.listen(1)
        except OSError as error:
            return Port(number, "refused", error.strerror or str(error))
    return Port(number, "free")


def _health(number: int) -> str | None:
    """Return what a Penstock says of itself there; None if it is another program."""
    with (
        suppress(OSError, HTTPException),
        closing(HTTPConnection(_HOST, number, timeout=_ASK_SECONDS)) as one,
    ):
        one.request("GET", "/ready")
        answer = one.getresponse()
        if answer.getheader("server", "") == PACKAGE:
            return "ready" if answer.status == 200 else answer.read(200).decode("utf-8", "replace")
    return None


def disk(what: str, folder: Path) -> Disk:
    """Return the facts of the folder, or of the nearest existing one above it; create nothing."""
    there = next((one for one in (folder, *folder.parents) if one.exists()), Path("/"))
    writable = there.is_dir() and os.access(there, os.W_OK | os.X_OK)
    return Disk(what, folder, shutil.disk_usage(there).free, writable)


def last_log(folder: Path) -> Log | None:
    """Return the newest log in the folder, and what went wrong last in its end."""
    with suppress(OSError):
        newest = max(folder.glob("*.log"), key=lambda file: file.stat().st_mtime, default=None)
        if newest is not None:
            with newest.open("rb") as stream:
                stream.seek(max(0, newest.stat().st_size - _LOG_BYTES))
                lines = stream.read().decode("utf-8", "replace").splitlines()
            errors = [line for line in lines if any(mark in line for mark in _LOG_MARKS)]
            return Log(newest, " ".join(errors[-1].split()) if errors else "")
    return None


def _variable_error(environment: Mapping[str, str]) -> str:
    try:
        refuse_unknown_variables(environment)
    except OptionError as error:
        return str(error)
    return ""
