"""The files of a service: what `install` writes, and `uninstall` takes away again."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

import msgspec

from api.cli.errors import OperatorError
from api.cli.service import environment_file
from api.cli.service.service_options import Platform, ServiceFiles, ServiceOptions
from api.cli.service.units import plist, socket_text, unit_text

_PRIVATE, _PUBLIC = 0o600, 0o644


@dataclass(frozen=True, slots=True)
class Planned:
    """A file to write. Private ones, with their folder, are for the service's user alone."""

    path: Path
    text: str
    mode: int = _PRIVATE
    is_kept: bool = False
    """Whether an existing file stays as it is."""


def plan(options: ServiceOptions, places: ServiceFiles, variables: Mapping[str, str]) -> list[Planned]:
    """Return every file of a new service. `variables` go into the environment file if there is none yet."""
    record = msgspec.json.format(msgspec.json.encode(options)).decode() + "\n"
    files = [
        Planned(places.environment, environment_file.written(variables), is_kept=True),
        Planned(places.record, record),
    ]
    if options.platform is Platform.LAUNCHD:
        # The log's folder must be there before launchd writes into it.
        files.append(Planned(places.crash_log, "", is_kept=True))
        return [*files, Planned(places.unit, plist(options, places), _PUBLIC)]
    files.append(Planned(places.unit, unit_text(options), _PUBLIC))
    return files if options.engine else [*files, Planned(places.socket, socket_text(options), _PUBLIC)]


def shown(planned: Planned) -> str:
    """Return what `--print` shows of a file, without the values of variables: a terminal keeps what it
    shows."""
    if planned.is_kept and planned.path.exists():
        return f"# {planned.path} (exists, and is kept)\n"
    lines = planned.text.splitlines()
    if planned.is_kept:
        lines = [line if line.startswith("#") else f"{line.partition('=')[0]}=..." for line in lines]
    return "\n".join([f"# {planned.path} (mode {planned.mode:o})", *lines]) + "\n"


def write(files: list[Planned], owner: str | None) -> list[Path]:
    """Write the files, each whole or not at all, and return those written. `owner` runs the service, and gets
    the private files and their new folder. Raise OperatorError."""
    written = []
    for one in files:
        if one.is_kept and one.path.exists():
            continue
        folder, is_private = one.path.parent, one.mode == _PRIVATE
        try:
            if not folder.exists():
                folder.mkdir(mode=0o700 if is_private else 0o755, parents=True)
                if is_private and owner is not None:
                    shutil.chown(folder, owner)
            # Nobody else reads a file while it is written: such a folder has mode 0700.
            with TemporaryDirectory(prefix=f".{one.path.name}.", dir=folder) as hidden:
                partial = Path(hidden, one.path.name)
                partial.write_text(one.text, "utf-8")
                partial.chmod(one.mode)
                if is_private and owner is not None:
                    shutil.chown(partial, owner)
                partial.replace(one.path)
        except (OSError, LookupError) as error:
            raise OperatorError(f"cannot write {one.path}: {error}") from error
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
