"""The facts about this machine that a report of something broken needs: plain values, and where they are
from: a child process, a socket, the hub's cache."""

from __future__ import annotations

import os
import platform
import socket
import sys
from collections.abc import Mapping
from contextlib import closing, suppress
from dataclasses import dataclass
from http.client import HTTPConnection, HTTPException
from typing import Literal, TypeAlias

from api.cli.errors import OperatorError
from api.cli.machine import Machine, ask
from api.cli.models.disk_models import DiskModel, find
from api.options.back_end import installed_back_ends
from api.options.options import refuse_unknown_variables
from api.version import PACKAGE, Version, own_version, release_of
from scheduler.engine.budget.readings import system_reader
from scheduler.errors import OptionError
from scheduler.processes.machine_share import cores_of_process, gpus_of

_HOST = "127.0.0.1"
_ASK_SECONDS = 1.0
_PACKAGES = ("mlx", "mlx-lm", "transformers")
PortState: TypeAlias = Literal["free", "penstock", "taken", "refused"]
"""`refused`: no program listens there, and `serve` could not either, as on a port that needs root."""


@dataclass(frozen=True, slots=True)
class Port:
    number: int
    state: PortState
    remark: str = ""
    """Why it is refused, or what a Penstock there says of its health."""


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
    port: Port
    back_ends: tuple[str, ...] = ()
    """Packages that bring MLX's compiled library."""
    cards: int = 0
    """Number of NVIDIA cards that CUDA_VISIBLE_DEVICES names or, if it is not set, that the driver lists."""
    machine: Machine | None = None
    """None if MLX does not work."""
    machine_error: str = ""
    physical_bytes: int = 0
    available_bytes: int | None = None
    cores: int = 1
    """Number of cores that this process may run on."""
    variable_error: str = ""
    """The error that `serve` would raise for the PENSTOCK_ variables; empty without one."""
    models: tuple[DiskModel, ...] = ()


def gather(port: int) -> Facts:
    """Return the facts. This takes some seconds."""
    machine, machine_error, variable_error = None, "", ""
    try:
        machine = ask().machine
    except OperatorError as error:
        machine_error = str(error)
    try:
        refuse_unknown_variables(os.environ)
    except OptionError as error:
        variable_error = str(error)
    return Facts(
        version=own_version(),
        platform=sys.platform,
        architecture=platform.machine(),
        python=platform.python_version(),
        packages={name: release_of(name) for name in _PACKAGES},
        back_ends=installed_back_ends(),
        cards=len(gpus_of(os.environ)),
        machine=machine,
        machine_error=machine_error,
        physical_bytes=os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
        available_bytes=system_reader()().available_bytes,
        cores=cores_of_process(),
        port=port_fact(port),
        variable_error=variable_error,
        models=tuple(find()),
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
