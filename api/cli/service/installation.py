"""The files of a service: what `install` writes, and `uninstall` takes away again."""

from __future__ import annotations

import os
import shutil
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import msgspec

from api.cli.errors import OperatorError
from api.cli.service import environment_file
from api.cli.service.service_options import Platform, ServiceFiles, ServiceOptions
from api.cli.service.units import plist, socket_text, unit_text


@dataclass(frozen=True, slots=True)
class Planned:
    """A file to write."""

    path: Path
    content: bytes
    mode: int
    is_kept: bool = False
    """Whether an existing file stays as it is."""


def plan(options: ServiceOptions, places: ServiceFiles, variables: Mapping[str, str]) -> tuple[Planned, ...]:
    """Return every file of a new service. `variables` go into the environment file if there is none yet."""
    unit = (
        plist(options, places)
        if options.platform is Platform.LAUNCHD
        else unit_text(options, places).encode()
    )
    files = [
        Planned(places.environment, environment_file.written(variables).encode(), 0o600, is_kept=True),
        Planned(places.record, msgspec.json.format(msgspec.json.encode(options)) + b"\n", 0o600),
        Planned(places.unit, unit, 0o644),
    ]
    if places.socket is not None and not options.engine:
        files.append(Planned(places.socket, socket_text(options).encode(), 0o644))
    return tuple(files)


def shown(planned: Planned, *, exists: bool) -> str:
    """Return what `--print` shows of a file, without the values of variables: a terminal keeps what it
    shows."""
    if planned.is_kept and exists:
        return f"# {planned.path} (exists, and is kept)\n"
    lines = planned.content.decode().splitlines()
    if planned.is_kept:
        lines = [line if line.startswith("#") else f"{line.partition('=')[0]}=..." for line in lines]
    return "\n".join([f"# {planned.path} (mode {planned.mode:o})", *lines]) + "\n"


def make_log_folder(places: ServiceFiles, owner: str | None) -> None:
    """Make the folder of the service's log, if it writes one itself. Raise OperatorError."""
    if places.log is None or places.log.parent.exists():
        return
    try:
        places.log.parent.mkdir(parents=True)
        if owner is not None:
            shutil.chown(places.log.parent, owner)
    except (OSError, LookupError) as error:
        raise OperatorError(f"cannot make {places.log.parent}: {error}") from error


def write(files: tuple[Planned, ...], owner: str | None) -> list[Path]:
    """Write the files, each whole or not at all, and return those written. `owner` runs the service, and gets
    the private files and their new folder. Raise OperatorError."""
    written = []
    for one in files:
        try:
            if not one.path.parent.exists():
                one.path.parent.mkdir(mode=0o755 if one.mode & 0o044 else 0o700, parents=True)
                if owner is not None and not one.mode & 0o044:
                    shutil.chown(one.path.parent, owner)
            if one.is_kept:
                if not environment_file.write_new(one.path, one.content.decode()):
                    continue
            else:
                _replace(one)
            if owner is not None and not one.mode & 0o044:
                shutil.chown(one.path, owner)
        except (OSError, LookupError) as error:
            raise OperatorError(f"cannot write {one.path}: {error}") from error
        written.append(one.path)
    return written


def _replace(one: Planned) -> None:
    partial = one.path.with_name(f".{one.path.name}.{os.getpid()}")
    try:
        descriptor = os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, one.mode)
        with os.fdopen(descriptor, "wb") as file:
            file.write(one.content)
            os.fchmod(descriptor, one.mode)
        partial.replace(one.path)
    finally:
        partial.unlink(missing_ok=True)


def recorded(places: ServiceFiles) -> ServiceOptions:
    """Return the recorded options of the installed service. Raise OperatorError if there is none."""
    try:
        return msgspec.json.decode(places.record.read_bytes(), type=ServiceOptions)
    except FileNotFoundError as error:
        raise OperatorError(
            f"no service of this name is installed ({places.record} is not there): penstock service install"
        ) from error
    except (OSError, msgspec.MsgspecError) as error:
        raise OperatorError(f"{places.record} cannot be used: {error}") from error


def remove(places: ServiceFiles, *, keep_environment: bool) -> list[Path]:
    """Remove what `install` wrote, and the logs. Return the removed files. Raise OperatorError."""
    files = [places.unit, *([] if places.socket is None else [places.socket]), places.record]
    if places.log is not None:
        files += sorted(places.log.parent.glob(f"{places.log.stem}*.log*"))
    if not keep_environment:
        files.append(places.environment)
    removed = []
    for path in files:
        try:
            path.unlink()
        except FileNotFoundError:
            continue
        except OSError as error:
            raise OperatorError(f"cannot remove {path}: {error}") from error
        removed.append(path)
    # rmdir removes only empty folders: the second may hold other services.
    for folder in (places.folder, places.folder.parent):
        with suppress(OSError):
            folder.rmdir()
    return removed
