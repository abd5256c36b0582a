"""The options of a service, and the places of its files. Nothing here writes or starts anything."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from api.cli.errors import OperatorError

NAME = "penstock"
_NAMES = re.compile(r"[A-Za-z][A-Za-z0-9_-]{0,31}")


class Platform(StrEnum):
    SYSTEMD = "systemd"
    LAUNCHD = "launchd"


@dataclass(frozen=True, slots=True, kw_only=True)
class ServiceOptions:
    """The options of a service. Raises OperatorError for those with which no service manager could run it."""

    name: str = NAME
    program: tuple[str, ...]
    """The command line of `penstock`, its first word an absolute path."""
    engine: bool = False
    """Whether it is an engine for a server on another machine, and not a server."""
    arguments: tuple[str, ...] = ()
    """Arguments of `serve`, or of `engine`, already checked."""
    platform: Platform
    system: bool = False
    """Whether the machine runs the service from its boot on; otherwise the user does."""
    run_as: str | None = None
    """The user that a system service runs as; None for a user's own service."""
    memory_max_bytes: int | None = None
    """Bound on the memory of all processes together, or None for no bound."""
    addresses: tuple[str, ...] = ()
    """Addresses on which systemd listens for it, such as `127.0.0.1:8000` or `[::1]:8000`."""
    drain_seconds: float = 30.0
    """The drain time of `serve`."""

    def __post_init__(self) -> None:
        if self.system and not self.run_as:
            raise OperatorError("a service of the system needs the user that it runs as: --run-as USER")
        if self.run_as and not self.system:
            raise OperatorError("--run-as is for --system: a user's service runs as that user")
        if self.memory_max_bytes is not None and self.platform is Platform.LAUNCHD:
            raise OperatorError(
                "launchd keeps no bound on memory: give serve's own --memory-limit instead of --memory-max"
            )


@dataclass(frozen=True, slots=True)
class ServiceFiles:
    """Where a service's files are."""

    unit: Path
    """systemd's unit, or launchd's property list."""
    folder: Path
    """The folder of the environment file and the record, made by `install`."""
    log: Path
    """The log file under launchd; systemd keeps the log itself."""

    @property
    def socket(self) -> Path:
        """systemd's unit of the sockets; launchd holds none for the server."""
        return self.unit.with_suffix(".socket")

    @property
    def crash_log(self) -> Path:
        """What launchd writes: errors before the service opens its log, or when it cannot."""
        return self.log.with_suffix(".crash.log")

    @property
    def environment(self) -> Path:
        """The file of keys and other variables."""
        return self.folder / "environment"

    @property
    def record(self) -> Path:
        """The file that records the options given to `install`."""
        return self.folder / "service.json"


def places_of(name: str, platform: Platform, *, system: bool, environment: Mapping[str, str]) -> ServiceFiles:
    """Return the places of a service's files. Raise OperatorError for an invalid name."""
    if _NAMES.fullmatch(name) is None:
        raise OperatorError(f"{name!r} is no name of a service: a letter, then letters, digits, - and _")
    home = Path(environment.get("HOME") or Path.home())
    library = Path("/Library") if system else home / "Library"
    log = library / "Logs" / "penstock" / f"{name}.log"
    if platform is Platform.LAUNCHD:
        agents = library / ("LaunchDaemons" if system else "LaunchAgents")
        folder = library / "Application Support" / "penstock" / "services" / name
        return ServiceFiles(agents / f"{label(name)}.plist", folder, log)
    config = Path(environment.get("XDG_CONFIG_HOME") or home / ".config")
    units = Path("/etc/systemd/system") if system else config / "systemd" / "user"
    folder = Path("/etc/penstock") if system else config / "penstock" / "services"
    return ServiceFiles(units / f"{name}.service", folder / name, log)


def label(name: str) -> str:
    """Return launchd's name of the service."""
    return f"penstock.{name}"
