"""The disk tier's folder: its lock, its layout, and the calls to the file system.

`FOLDER/3f/3f…-PREDECESSOR-b512.kv1.safetensors`: 256 subfolders, named after the first byte of the key. The
name has what the index needs, so that a scan opens no file. The tier never touches files with other names. It
writes whole files by a rename. After a SIGKILL a partial file may remain, which the next scan removes: under
the lock no other engine can be writing it. Files that an operator copies into the folder are found by a later
scan, which lists only the subfolders that have changed.
"""

from __future__ import annotations

import fcntl
import os
import stat
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from scheduler.engine.disk.block_chain import Place, parse
from scheduler.engine.disk.block_file import Buffer, Damage
from scheduler.engine.disk.disk_index import FoundFile

_LOCK = "penstock-kv.lock"
_PARTIAL = ".partial"
_UNTOUCHED_SECONDS = 2.0
"""A file that was modified less than this ago may still be being copied, and such a folder may get another
file within the same tick of the file system's clock: both are looked at again."""


_ABSENT = (FileNotFoundError, NotADirectoryError)
"""Where something else has taken a subfolder's name, its files are gone, too."""


class DiskTierUnavailable(Exception):
    """There can be no disk tier in this folder; the message gives the operator the reason."""


@dataclass(frozen=True, slots=True)
class Scan:
    """What a look into the folder has found. `other_formats`: how many files of another version it
    deleted."""

    found: tuple[FoundFile, ...]
    other_formats: int
    errors: tuple[OSError, ...]


class DiskFolder:
    """A folder that this process owns from construction to `release`. One thread at a time writes, deletes
    and stamps; any may read.

    Every method but `release` and `takes` may wait for the disk, and all of those but `scan` raise OSError.
    """

    def __init__(self, path: Path) -> None:
        """Make the folder, or make ours private (prompts can be computed from the cached values), and lock
        it. Raise DiskTierUnavailable."""
        self._path = path
        self._listed: dict[int, int] = {}  # By subfolder: its time of modification when it was listed.
        self._unusable: set[int] = set()  # Subfolders that the last scan could not list.
        try:
            path.mkdir(mode=0o700, parents=True, exist_ok=True)
            _tighten(path)
            self._lock = os.open(path / _LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except OSError as error:
            raise DiskTierUnavailable(f"{path} cannot be used: {error.strerror}") from error
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            os.close(self._lock)
            in_use = isinstance(error, BlockingIOError)
            why = "another service uses it" if in_use else f"it cannot be locked: {error.strerror}"
            raise DiskTierUnavailable(f"{path} cannot be used: {why}") from error

    def release(self) -> None:
        """Unlock the folder. The end of the process does so, too, however it ends."""
        os.close(self._lock)

    def scan(self, known: Callable[[Place], bool] | None = None) -> Scan:
        """List our files, by name alone, and delete partial ones and those of another version. 10,000 files:
        0.1 s.

        With `known`: only files that are not known, in subfolders that changed since the last scan, and none
        that may still be being copied. No change: 256 calls of `stat`.

        An error is that of one subfolder, or of one file: it is in the result, and the others are listed.
        """
        now = time.time()
        found, errors, other_formats = list[FoundFile](), list[OSError](), 0
        for shard in range(256):
            try:
                files = self._files(shard, now)
            except OSError as error:
                if shard not in self._unusable:  # Else it is reported already.
                    errors.append(error)
                self._unusable.add(shard)
                self._listed.pop(shard, None)
                continue
            self._unusable.discard(shard)
            for file in files:
                try:
                    match self._judged(file, shard, now, known):
                        case FoundFile() as one:
                            found.append(one)
                        case "other format":
                            other_formats += 1
                except OSError as error:
                    errors.append(error)
        return Scan(tuple(found), other_formats, tuple(errors))

    def takes(self, place: Place) -> bool:
        """Return whether the last scan could use the subfolder that the file belongs into."""
        return place.key[0] not in self._unusable

    def read(self, place: Place, nbytes: int) -> bytes:
        """Return the whole file. Raise Damage if it is not `nbytes` long, without reading it."""
        file = os.open(self._where(place), os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
        try:
            size = os.fstat(file).st_size
            if size != nbytes:
                raise Damage("truncated" if size < nbytes else "checksum")
            pieces = []
            while size and (piece := os.read(file, size)):  # More than one on Linux from 2 GiB on.
                pieces.append(piece)
                size -= len(piece)
            return pieces[0] if len(pieces) == 1 else b"".join(pieces)
        finally:
            os.close(file)

    def write(self, place: Place, parts: Sequence[Buffer]) -> None:
        """Write the whole file and sync it, or (OSError) leave nothing. Replaces an existing file.

        The folder itself is not synchronised: if a loss of power undoes the rename, that is a miss.
        """
        final = self._where(place)
        partial = os.path.join(os.path.dirname(final), f".{place.file_name}{_PARTIAL}")
        flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC | os.O_NOFOLLOW
        try:
            file = os.open(partial, flags, 0o600)
        except FileNotFoundError:
            os.makedirs(os.path.dirname(final), mode=0o700, exist_ok=True)
            file = os.open(partial, flags, 0o600)
        try:
            try:
                for part in parts:
                    _write_all(file, memoryview(part))
                os.fsync(file)
            finally:
                os.close(file)
            os.replace(partial, final)
        except BaseException:
            with suppress(OSError):
                os.unlink(partial)
            raise

    def delete(self, place: Place) -> None:
        """Delete the file, if it exists."""
        with suppress(*_ABSENT):
            os.unlink(self._where(place))

    def stamp(self, place: Place) -> None:
        """Set its time of use, for the next process's scan."""
        with suppress(*_ABSENT):
            os.utime(self._where(place))

    def _where(self, place: Place) -> str:
        return os.path.join(self._path, f"{place.key[0]:02x}", place.file_name)

    def _files(self, shard: int, now: float) -> list[os.DirEntry[str]]:
        """Return the files of a subfolder, none if it has not changed since it was listed or does not
        exist."""
        path = os.path.join(self._path, f"{shard:02x}")
        try:
            modified = os.stat(path).st_mtime_ns
            if modified == self._listed.get(shard):
                return []
            with os.scandir(path) as listing:
                files = [file for file in listing if file.is_file(follow_symlinks=False)]
        except FileNotFoundError:
            if os.path.islink(path):  # To nowhere: no subfolder can be made in its place.
                raise
            return []
        self._listed.pop(shard, None)
        if now - modified / 1e9 >= _UNTOUCHED_SECONDS:
            self._listed[shard] = modified
        return files

    def _judged(
        self, file: os.DirEntry[str], shard: int, now: float, known: Callable[[Place], bool] | None
    ) -> FoundFile | Literal["other format"] | None:
        """Return a file that a scan finds, None for one that it passes over. Delete a partial one, and one of
        another version. Raise OSError."""
        partial = file.name.startswith(".") and file.name.endswith(_PARTIAL)
        place = parse(file.name[1 : -len(_PARTIAL)] if partial else file.name)
        if place == "stranger":
            return None
        if partial or place == "other format":
            os.unlink(file.path)
            return None if partial else "other format"
        if known is not None and known(place):
            return None
        status = file.stat(follow_symlinks=False)
        if known is not None and 0 <= now - status.st_mtime < _UNTOUCHED_SECONDS:
            self._listed.pop(shard, None)  # It may still be being copied.
            return None
        # A file from the future (a clock was set back) would otherwise never be the least recently used.
        return FoundFile(place, status.st_size, min(status.st_mtime, now))


def _tighten(folder: Path) -> None:
    """Make a folder of this user private, unless it is a shared one such as /tmp."""
    status = folder.stat()
    is_shared = bool(status.st_mode & stat.S_ISVTX)
    if status.st_uid == os.geteuid() and not is_shared and status.st_mode & 0o077:
        folder.chmod(stat.S_IMODE(status.st_mode) & ~0o077)


def _write_all(file: int, rest: memoryview) -> None:
    while rest:
        rest = rest[os.write(file, rest) :]
