"""The disk tier's folder: its lock, its layout, and the calls to the file system.

`FOLDER/3f/3f…-PARENT-b512.kv1.safetensors`: 256 subfolders, named after the first byte of the key. The name
has what the index needs, so that a scan opens no file. The tier never touches files with other names. It
writes whole files by a rename. After a SIGKILL a partial file may remain, which the next scan removes: under
the lock no other engine can be writing it. Files that an operator copies into the folder are found by a later
scan, which lists only the subfolders that have changed.
"""

from __future__ import annotations

import fcntl
import os
import stat
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path

from scheduler.engine.disk.block_chain import Place, parse
from scheduler.engine.disk.block_file import Buffer, Damage
from scheduler.engine.disk.disk_index import FoundFile

_LOCK = "penstock-kv.lock"
_PARTIAL = ".partial"
_UNTOUCHED_SECONDS = 2.0
"""A file that was modified less than this ago may still be being copied, and such a folder may get another
file within the same tick of the file system's clock: both are looked at again."""


class DiskTierUnavailable(Exception):
    """There can be no disk tier in this folder; the message gives the operator the reason."""


class DiskFolder:
    """A folder that this process owns from construction to `release`. One thread at a time writes, deletes
    and stamps; any may read.

    Every method but `release` may wait for the disk, and raises OSError.
    """

    def __init__(self, path: Path) -> None:
        """Make the folder, or make ours private (prompts can be computed from the cached values), and lock
        it. Raise DiskTierUnavailable."""
        self._path = path
        self._listed: dict[int, int] = {}  # By subfolder: its time of modification when it was listed.
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

    def scan(self, known: Callable[[Place], bool] | None = None) -> tuple[list[FoundFile], int]:
        """Return our files, by name alone, and how many of another version were deleted. Delete partial
        files. 10,000 files: 0.1 s.

        With `known`: only files that are not known, in subfolders that changed since the last scan, and none
        that may still be being copied. No change: 256 calls of `stat`.
        """
        try:
            return self._scan(known or (lambda place: False), 0.0 if known is None else _UNTOUCHED_SECONDS)
        except OSError:
            self._listed.clear()  # What was found before is lost.
            raise

    def _scan(self, known: Callable[[Place], bool], untouched_seconds: float) -> tuple[list[FoundFile], int]:
        found: list[FoundFile] = []
        other_formats = 0
        now = time.time()
        for shard, file in self._files(now):
            name, partial = file.name, file.name.startswith(".") and file.name.endswith(_PARTIAL)
            place = parse(name[1 : -len(_PARTIAL)] if partial else name)
            if place == "stranger":
                continue
            if partial or place == "other format":
                os.unlink(file.path)
                other_formats += not partial
            elif not known(place):
                status = file.stat(follow_symlinks=False)
                if 0 <= now - status.st_mtime < untouched_seconds:
                    self._listed.pop(shard, None)
                    continue
                # A file from the future (a clock was set back) would otherwise never be the least recently
                # used.
                found.append(FoundFile(place, status.st_size, min(status.st_mtime, now)))
        return found, other_formats

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
        with suppress(FileNotFoundError):
            os.unlink(self._where(place))

    def stamp(self, place: Place) -> None:
        """Set its time of use, for the next process's scan."""
        with suppress(FileNotFoundError):
            os.utime(self._where(place))

    def _where(self, place: Place) -> str:
        return os.path.join(self._path, f"{place.key[0]:02x}", place.file_name)

    def _files(self, now: float) -> Iterator[tuple[int, os.DirEntry[str]]]:
        """Yield the files of each subfolder that has changed since it was listed, with the subfolder."""
        for shard in range(256):
            path = os.path.join(self._path, f"{shard:02x}")
            try:
                modified = os.stat(path).st_mtime_ns
                if modified == self._listed.get(shard):
                    continue
                listing = os.scandir(path)
            except FileNotFoundError:
                continue
            self._listed.pop(shard, None)
            if now - modified / 1e9 >= _UNTOUCHED_SECONDS:
                self._listed[shard] = modified
            with listing:
                yield from ((shard, file) for file in listing if file.is_file(follow_symlinks=False))


def _tighten(folder: Path) -> None:
    """Make a folder of this user private, unless it is a shared one such as /tmp."""
    status = folder.stat()
    is_shared = bool(status.st_mode & stat.S_ISVTX)
    if status.st_uid == os.geteuid() and not is_shared and status.st_mode & 0o077:
        folder.chmod(stat.S_IMODE(status.st_mode) & ~0o077)


def _write_all(file: int, rest: memoryview) -> None:
    while rest:
        rest = rest[os.write(file, rest) :]
