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
    """A file to write. Private ones, with their folder, are for the service's user alone."""

    path: Path
    content: bytes
    is_private: bool = False
    is_kept: bool = False
    """Whether an existing file stays as it is."""


def plan(options: ServiceOptions, places: ServiceFiles, variables: Mapping[str, str]) -> tuple[Planned, ...]:
    """Return every file of a new service. `variables` go into the environment file if there is none yet."""
    environment = environment_file.written(variables).encode()
    record = msgspec.json.format(msgspec.json.encode(options)) + b"\n"
    files = [Planned(places.environment, environment, True, True), Planned(places.record, record, True)]
    if options.platform is Platform.LAUNCHD:
        # The log's folder must be there before launchd writes into it.
        crashes = places.log.with_suffix(".crash.log")
        return (*files, Planned(crashes, b"", True, True), Planned(places.unit, plist(options, places)))
    files.append(Planned(places.unit, unit_text(options).encode()))
    if not options.engine:
        files.append(Planned(places.socket, socket_text(options).encode()))
    return tuple(files)


def shown(planned: Planned) -> str:
    """Return what `--print` shows of a file, without the values of variables: a terminal keeps what it
    shows."""
    if planned.is_kept and planned.path.exists():
        return f"# {planned.path} (exists, and is kept)\n"
    lines = planned.content.decode().splitlines()
    if planned.is_kept:
        lines = [line if line.startswith("#") else f"{line.partition('=')[0]}=..." for line in lines]
    return "\n".join([f"# {planned.path} (mode {_mode(planned):o})", *lines]) + "\n"


def _mode(planned: Planned) -> int:
    return 0o600 if planned.is_private else 0o644


def write(files: tuple[Planned, ...], owner: str | None) -> list[Path]:
    """Write the files, each whole or not at all, and return those written. `owner` runs the service, and gets
    the private files and their new folder. Raise OperatorError."""
    written = []
    for one in files:
        if one.is_kept and one.path.exists():
            continue
        folder, of_owner = one.path.parent, owner if one.is_private else None
        partial = one.path.with_name(f".{one.path.name}.{os.getpid()}")
        try:
            if not folder.exists():
                folder.mkdir(mode=0o700 if one.is_private else 0o755, parents=True)
                if of_owner is not None:
                    shutil.chown(folder, of_owner)
            # Nobody else reads it from the first byte on.
            descriptor = os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
            with os.fdopen(descriptor, "wb") as file:
                file.write(one.content)
                os.fchmod(descriptor, _mode(one))
            if of_owner is not None:
                shutil.chown(partial, of_owner)
            partial.replace(one.path)
        except (OSError, LookupError) as error:
            raise OperatorError(f"cannot write {one.path}: {error}") from error
        finally:
            with suppress(OSError):
                partial.unlink()
        written.append(one.path)
    return written


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
    logs = sorted(places.log.parent.glob(f"{places.log.stem}.*"))
    kept = [] if keep_environment else [places.environment]
    removed = []
    for path in [places.unit, places.socket, places.record, *logs, *kept]:
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
