"""The disk tier's folder: its lock, its names, and the calls to the file system.

`FOLDER/KEY-PREDECESSOR-b512.kv1.safetensors`: a name has what the index needs, so that a look opens no file.
Files with other names are never touched. A file is written whole, by a rename; what a SIGKILL leaves of one
is removed by the next look: under the lock no other engine can be writing it. What an operator copies into
the folder is found by a later look.
"""

from __future__ import annotations

import fcntl
import os
import stat
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path

from scheduler.engine.disk.block_chain import FORMAT_VERSION, Place, parse
from scheduler.engine.disk.block_file import Buffer, Damage
from scheduler.engine.disk.disk_index import Entry

LOCK = "penstock-kv.lock"
_PARTIAL = ".partial"
_UNTOUCHED_SECONDS = 2.0
"""A file that was modified less than this ago may still be being copied: a later look takes it."""


class DiskTierUnavailable(Exception):
    """There can be no disk tier in this folder; the message gives the operator the reason."""


class DiskFolder:
    """A folder that this process owns from construction to `release`. One thread calls it, for whom every
    method may wait for the disk and raise OSError."""

    def __init__(self, path: Path) -> None:
        """Make the folder, or make ours private (prompts can be computed from the cached values), and lock
        it. Raise DiskTierUnavailable."""
        self._path = path
        self._names: set[str] = set()  # Those that looks have seen.
        try:
            path.mkdir(mode=0o700, parents=True, exist_ok=True)
            status = path.stat()
            shared = bool(status.st_mode & stat.S_ISVTX)  # As /tmp.
            if status.st_uid == os.geteuid() and not shared and status.st_mode & 0o077:
                path.chmod(stat.S_IMODE(status.st_mode) & ~0o077)
            self._lock = os.open(path / LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except OSError as error:
            raise DiskTierUnavailable(f"{path} cannot be used: {error.strerror}") from error
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            os.close(self._lock)
            in_use = isinstance(error, BlockingIOError)
            why = "another service uses it" if in_use else f"it cannot be locked: {error.strerror}"
            raise DiskTierUnavailable(f"{path} cannot be used: {why}") from error
        for file in path.glob(f"[0-9a-f][0-9a-f]/*.kv{FORMAT_VERSION}.safetensors*"):
            with suppress(OSError):  # Until 0.2 there were 256 subfolders.
                file.rename(path / file.name)

    def release(self) -> None:
        """Unlock the folder. The end of the process does so, too, however it ends."""
        os.close(self._lock)

    def look(self, report: Callable[[OSError], None]) -> Iterator[Entry]:
        """Yield the files of ours that have come since the last look, by name alone (10,000: 0.1 s). Delete
        partial ones and those of another version. `report` gets the errors of single files."""
        now, first, names = time.time(), not self._names, set(os.listdir(self._path))
        new, self._names = names - self._names, names
        for name in new:
            partial = name.startswith(".") and name.endswith(_PARTIAL)
            place = parse(name[1 : -len(_PARTIAL)] if partial else name)
            if place == "stranger":
                continue
            try:
                if partial or place == "other format":
                    os.unlink(self._path / name)
                    names.discard(name)  # It may come again.
                    continue
                status = os.stat(self._path / name, follow_symlinks=False)
            except OSError as error:
                report(error)
                continue
            if not first and 0 <= now - status.st_mtime < _UNTOUCHED_SECONDS:
                names.discard(name)
            elif stat.S_ISREG(status.st_mode):
                # One from the future (a clock was set back) would never be the least recently used.
                yield Entry(place, status.st_size, min(status.st_mtime, now))

    def read(self, place: Place, nbytes: int) -> bytes:
        """Return the whole file. Raise Damage if it is not `nbytes` long, without reading it."""
        file = os.open(self._path / place.file_name, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
        try:
            size, pieces = os.fstat(file).st_size, list[bytes]()
            if size != nbytes:
                raise Damage("damaged")
            while size and (piece := os.read(file, size)):  # More than one on Linux from 2 GiB on.
                pieces.append(piece)
                size -= len(piece)
            return pieces[0] if len(pieces) == 1 else b"".join(pieces)
        finally:
            os.close(file)

    def write(self, place: Place, parts: Sequence[Buffer]) -> None:
        """Write the whole file and sync it, or (OSError) leave nothing. The folder itself is not
        synchronised: if a loss of power undoes the rename, that is a miss."""
        partial = self._path / f".{place.file_name}{_PARTIAL}"
        flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC | os.O_NOFOLLOW
        file = os.open(partial, flags, 0o600)
        try:
            try:
                for part in parts:
                    rest = memoryview(part)
                    while rest:
                        rest = rest[os.write(file, rest) :]
                os.fsync(file)
            finally:
                os.close(file)
            os.replace(partial, self._path / place.file_name)
        except BaseException:
            with suppress(OSError):
                os.unlink(partial)
            raise
        self._names.add(place.file_name)

    def delete(self, place: Place) -> None:
        with suppress(FileNotFoundError):
            os.unlink(self._path / place.file_name)
        self._names.discard(place.file_name)  # It may be copied in again.

    def stamp(self, place: Place) -> None:
        """Set its time of use, for the next process's look."""
        with suppress(FileNotFoundError):
            os.utime(self._path / place.file_name)
