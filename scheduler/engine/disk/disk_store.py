"""The disk tier's files within a budget: loading, saving, eviction, and damage (a counted miss).

Three threads share it: the engine's thread only reads the index, a reader calls `load`, a writer calls `save`
and `tidy`. Only the writer changes the file system: a file that `load` finds damaged is matched no more and
is deleted by the next `tidy`, with which every `save` begins. What an operator copies into the folder is
taken in by `look_again`, which the writer calls, too. Disk errors raise nothing here.
"""

from __future__ import annotations

import errno
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import Final, Literal, TypeAlias, get_args

import msgspec

from scheduler.engine.disk.block_chain import Chain, Place
from scheduler.engine.disk.block_file import Content, Damage, DamageKind, decode, encode
from scheduler.engine.disk.disk_folder import DiskFolder
from scheduler.engine.disk.disk_index import DiskIndex, Entry
from scheduler.shared.counters import DiskCounters

ErrorKind: TypeAlias = DamageKind | Literal["missing", "full", "denied", "io"]
ERROR_KINDS: Final[tuple[ErrorKind, ...]] = (*get_args(DamageKind), "missing", "full", "denied", "io")

_ERRNO_KINDS: Final[Mapping[int | None, ErrorKind]] = {
    errno.ENOENT: "missing",
    **dict.fromkeys((errno.ENOSPC, errno.EDQUOT), "full"),
    **dict.fromkeys((errno.EACCES, errno.EPERM, errno.EROFS), "denied"),
    **dict.fromkeys((errno.ENOTDIR, errno.EEXIST, errno.ELOOP), "foreign"),
}
_STAMP_SECONDS = 60.0
_MOST_NAMED = 10
"""Errors of one kind that are logged; further ones are only counted."""
_FIRST_PAUSE_SECONDS, _LONGEST_PAUSE_SECONDS = 1.0, 60.0


class DiskStore:
    """The tier's files: never more than the budget on the disk, the file being written included."""

    def __init__(
        self,
        folder: DiskFolder,
        fingerprint: str,
        budget_bytes: int,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Scan the folder and evict down to the budget, what was used longest ago first."""
        self._folder = folder
        self._fingerprint = fingerprint
        self._budget_bytes = budget_bytes
        self._clock = clock
        self._lock = threading.Lock()  # Guards the index and the counters; not held during disk operations.
        self._index = DiskIndex()
        self._unstamped: deque[Place] = deque()
        self._resume_at, self._pause_seconds = float("-inf"), _FIRST_PAUSE_SECONDS
        self._totals = DiskCounters(errors=dict.fromkeys(ERROR_KINDS, 0))
        self._take_in(known=None)

    @property
    def paused(self) -> bool:
        """Return whether writes are paused after a disk error."""
        return self._clock() < self._resume_at

    @property
    def untidy(self) -> bool:
        """Return whether the writer's thread should call `tidy`."""
        return bool(self._unstamped) or self._leaving() is not None

    def holds(self, place: Place) -> bool:
        with self._lock:
            return self._index.get(place) is not None

    def match(self, chain: Chain, limit: int) -> int:
        """Return the tokens of the leading blocks in the index, at most `limit`."""
        with self._lock:
            return self._index.match(chain, limit)

    def deepest_snapshot(self, chain: Chain, limit: int) -> int:
        """Return the position of the deepest snapshot that can be used, at most `limit`; 0: there is none."""
        with self._lock:
            return self._index.deepest_snapshot(chain, limit)

    def touch(self, path: Sequence[Place]) -> None:
        """Mark a path as used now. `tidy` writes that to the file system, at most once a minute for its
        end."""
        with self._lock:
            self._index.touch(path)
            entry = self._index.get(path[-1])
            if entry is not None and self._clock() - entry.stamped >= _STAMP_SECONDS:
                entry.stamped = self._clock()
                self._unstamped.append(entry.place)

    def load(self, place: Place) -> Content | None:
        """Return the verified content; None is a miss. A damaged or missing file is matched no more."""
        with self._lock:
            entry = self._index.get(place)
        if entry is None:
            return None
        kind: ErrorKind
        try:
            content = decode(self._folder.read(place, entry.nbytes), place, self._fingerprint)
        except Damage as damage:
            kind, why = damage.kind, f"{place.file_name} is damaged"
        except OSError as error:
            kind, why = _kind_of(error), str(error)
        else:
            with self._lock:
                self._totals.reads += 1
                self._totals.read_bytes += entry.nbytes
            return content
        with self._lock:
            current = self._index.get(place) is entry
            if current:
                self._index.leave(entry)
        if current or kind != "missing":  # Else it was evicted before we could open it.
            self._count(kind, why)
        return None

    def save(self, path: Sequence[Place], content: Content) -> bool:
        """Write the file at the end of a path. Return False if the one before it is gone, if there is no room
        beside the path, if its subfolder cannot be used, or after a disk error. Called by the writer's
        thread; waits for the disk."""
        self.tidy()
        place = path[-1]
        parts = encode(content, place, self._fingerprint)
        nbytes = sum(len(part) for part in parts)
        if self.paused or not self._folder.takes(place) or not self._make_room(path, nbytes):
            return False
        try:
            self._folder.write(place, parts)
        except OSError as error:
            self._back_off(error)
            if _kind_of(error) == "full":  # By other files, whatever our budget is: a cache makes room.
                self._shrink(self._index.nbytes - nbytes)
            return False
        self._pause_seconds = _FIRST_PAUSE_SECONDS
        with self._lock:
            self._totals.writes += 1
            self._totals.write_bytes += nbytes
            self._index.add(Entry(place, nbytes, self._clock()))
            self._index.touch(path)
        return True

    def tidy(self) -> None:
        """Delete damaged files and write times of use. Called by the writer's thread."""
        while (entry := self._leaving()) is not None:
            self._delete(entry)
        while self._unstamped:
            place = self._unstamped.popleft()
            try:
                self._folder.stamp(place)
            except OSError as error:
                self._count(_kind_of(error), str(error))

    def look_again(self) -> None:
        """Take in what was copied into the folder since the last scan, and evict down to the budget. Called
        by the writer's thread; waits for the disk."""
        self._take_in(self._knows)

    def statistics(self) -> DiskCounters:
        with self._lock:
            return msgspec.structs.replace(
                self._totals,
                files=len(self._index),
                nbytes=self._index.nbytes,
                errors=dict(self._totals.errors),
            )

    def fail(self, error: Exception) -> None:
        """Count an unexpected exception."""
        self._count("io", f"{type(error).__name__}: {error}")

    def _take_in(self, known: Callable[[Place], bool] | None) -> None:
        scan = self._folder.scan(known)
        with self._lock:
            self._totals.errors["foreign"] += scan.other_formats
            self._index.restore(scan.found)
        for error in scan.errors:
            self._count(_kind_of(error), str(error))
        self._shrink(self._budget_bytes)

    def _knows(self, place: Place) -> bool:
        with self._lock:
            return place in self._index

    def _leaving(self) -> Entry | None:
        """Return a file to delete, none while deletions are paused."""
        with self._lock:
            entry = self._index.oldest()
            return None if entry is None or not entry.leaving or self.paused else entry

    def _make_room(self, path: Sequence[Place], nbytes: int) -> bool:
        """Evict until the file at the end of the path fits, but nothing of the path."""
        before = path[:-1]
        with self._lock:
            if nbytes > self._budget_bytes or (before and self._index.get(before[-1]) is None):
                return False
            self._index.touch(before)  # So that everything else is evicted before it.
        return self._shrink(self._budget_bytes - nbytes, before[-1:])

    def _shrink(self, to_bytes: int, kept: Sequence[Place] = ()) -> bool:
        """Evict down to these bytes. Return False if only what is kept, and newer, is left."""
        while True:
            with self._lock:
                victim = self._index.oldest()
                if self._index.nbytes <= to_bytes or victim is None:
                    return self._index.nbytes <= to_bytes
                if victim.place in kept:
                    return False
                self._totals.evicted_files += not victim.leaving
                self._index.leave(victim)
            if not self._delete(victim):
                return False

    def _delete(self, entry: Entry) -> bool:
        """Delete a file that leaves. Return whether its bytes are free. If not, they count against the
        budget, and it is tried again after all others."""
        try:
            self._folder.delete(entry.place)
        except OSError as error:
            self._back_off(error)
            with self._lock:
                self._index.postpone(entry)
            return False
        with self._lock:
            self._index.remove(entry.place)
        return True

    def _back_off(self, error: OSError) -> None:
        """Count an I/O error and pause writes: exponential backoff."""
        self._count(_kind_of(error), str(error))
        self._resume_at = self._clock() + self._pause_seconds
        self._pause_seconds = min(2 * self._pause_seconds, _LONGEST_PAUSE_SECONDS)

    def _count(self, kind: ErrorKind, why: str) -> None:
        with self._lock:
            self._totals.errors[kind] += 1
            count = self._totals.errors[kind]
        if count <= _MOST_NAMED:
            last = " (further errors of this kind are only counted)" if count == _MOST_NAMED else ""
            print(f"disk tier: {kind}: {why}{last}", file=sys.stderr)


def _kind_of(error: OSError) -> ErrorKind:
    return _ERRNO_KINDS.get(error.errno, "io")
