"""What `penstock doctor` has found out about this machine: plain values, which findings are computed from."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal, TypeAlias

from api.cli.machine import Machine
from api.cli.models.disk_models import DiskModel
from api.cli.models.memory_plan import MemoryPlan
from api.version import Version

PortState: TypeAlias = Literal["free", "penstock", "taken", "refused"]
"""`refused`: no program listens there, and `serve` could not either, as on a port that needs root."""


@dataclass(frozen=True, slots=True)
class Port:
    number: int
    state: PortState
    error: str = ""


@dataclass(frozen=True, slots=True)
class Disk:
    """A folder that serving writes to. `free_bytes` is -1 if unknown."""

    what: str
    folder: Path
    free_bytes: int
    writable: bool


@dataclass(frozen=True, slots=True)
class RequiredPackage:
    """A package that our own metadata asks for."""

    package: str
    wanted: str
    """The version as the metadata has it, `>=5,<6`; empty for any."""
    found: str
    """The installed version, or an empty string if there is none."""
    accepted: bool


@dataclass(frozen=True, slots=True)
class Blas:
    """The library of the engine's matrix products, as `serve --blas auto` chooses it."""

    name: str
    warning: str = ""


@dataclass(frozen=True, slots=True)
class ModelOnDisk:
    model: DiskModel
    plan: MemoryPlan | None
    """The memory plan, or None if it is no model, mlx-lm cannot build it, or MLX does not work here."""
    reason: str = ""
    """Why it cannot be served here, or an empty string if it can."""


@dataclass(frozen=True, slots=True)
class Facts:
    """What was found out about the machine. `available_bytes` is None if the system does not report it."""

    version: Version
    platform: str
    """sys.platform."""
    architecture: str
    """platform.machine()."""
    python: str
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
    quota_cores: float | None = None
    """The CPU quota of its control group in cores, or None without a quota."""
    blas: Blas | None = None
    pins: tuple[RequiredPackage, ...] = ()
    ports: tuple[Port, ...] = ()
    disks: tuple[Disk, ...] = ()
    open_files: int = 0
    """The hard limit on open files of this process, `sys.maxsize` if there is none."""
    wanted_files: int = 0
    """Number of files for `serve`'s default bound on connections."""
    connections: int = 0
    """The bound on connections that `serve` would use within `open_files`."""
    variable_error: str = ""
    """The error that `serve` would raise for the PENSTOCK_ variables; empty without one."""
    models: tuple[ModelOnDisk, ...] = ()
