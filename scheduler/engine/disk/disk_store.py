"""The disk tier's files within a budget: loading, saving, eviction, and damage (a counted miss).

Three threads share it: the engine's thread only reads the index, a reader calls `load`, a writer calls `save`
and `tidy`. Only the writer changes the file system: a file that `load` finds damaged leaves the index
immediately and is deleted by the next `tidy`, with which every `save` begins, so that a deletion never hits a
newer file of the same name. What an operator copies into the folder is taken in by `look_again`, which the
writer calls, too. Disk errors raise nothing here.
"""

from __future__ import annotations

import errno
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping
from typing import Final, Literal, TypeAlias, get_args

import msgspec

from scheduler.engine.disk.block_chain import Chain, Key, Place
from scheduler.engine.disk.block_file import Content, Damage, DamageKind, decode, encode
from scheduler.engine.disk.disk_folder import DiskFolder, Scan
from scheduler.engine.disk.disk_index import DiskIndex, Entry, FoundFile
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
        """Scan the folder and evict down to the budget: orphans, then the least recently used."""
        self._folder = folder
        self._fingerprint = fingerprint
        self._budget_bytes = budget_bytes
        self._clock = clock
        self._lock = threading.Lock()  # Guards the index and the counters; not held during disk operations.
        self._index = DiskIndex()
        self._doomed: deque[Entry] = deque()
        self._unstamped: deque[Place] = deque()
        self._strays: dict[Place, int] = {}
        """Files without those that they depend on, with their sizes: copied in before them, or found where a
        subfolder could not be listed. They are kept, as those may follow, and evicted first."""
        self._leaving_bytes = 0  # Of files that left the index and are not deleted yet, or could not be.
        self._resume_at, self._pause_seconds = float("-inf"), _FIRST_PAUSE_SECONDS
        self._totals = DiskCounters(errors=dict.fromkeys(ERROR_KINDS, 0))
        scan = self._scan(known=None)
        orphans = self._index.restore(scan.found)
        if scan.errors:  # What they stand on may be where the scan could not look.
            self._strays = {file.place: file.nbytes for file in orphans}
        else:
            self._doomed.extend(Entry(file.place, file.nbytes) for file in reversed(orphans))
            self._leaving_bytes = sum(file.nbytes for file in orphans)
            self._totals.evicted_files += len(orphans)
        self.tidy()
        self._shrink(self._held_bytes() - self._budget_bytes)

    @property
    def paused(self) -> bool:
        """Return whether writes are paused after a disk error."""
        return self._clock() < self._resume_at

    @property
    def untidy(self) -> bool:
        """Return whether the writer's thread should call `tidy`."""
        return bool(self._doomed or self._unstamped)

    def holds(self, key: Key) -> bool:
        with self._lock:
            return self._index.get(key) is not None

    def match(self, chain: Chain, limit: int) -> int:
        """Return the tokens of the leading blocks in the index, at most `limit`."""
        with self._lock:
            return self._index.match(chain, limit)

    def deepest_snapshot(self, chain: Chain, limit: int, alone: bool) -> int:
        """Return the position of the deepest snapshot that can be used, at most `limit`; 0: there is none."""
        with self._lock:
            return self._index.deepest_snapshot(chain, limit, alone)

    def touch(self, key: Key) -> None:
        """Mark an entry and its parents as used now. `tidy` writes that to the file system, at most once a
        minute for a path's end."""
        with self._lock:
            entry = self._index.touch(key)
            if entry is not None and self._clock() - entry.stamped >= _STAMP_SECONDS:
                entry.stamped = self._clock()
                self._unstamped.append(entry.place)

    def load(self, place: Place) -> Content | None:
        """Return the verified content; None is a miss. A damaged or missing file leaves the index with its
        descendants."""
        with self._lock:
            entry = self._index.get(place.key)
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
            current = self._index.get(place.key) is entry
            if current:
                self._doomed.extend(self._forget(place.key))
        if current or kind != "missing":  # Else it was evicted before we could open it.
            self._count(kind, why)
        return None

    def save(self, place: Place, content: Content) -> bool:
        """Write one file. Return False if its parent is gone, if making room would evict the parent, if its
        subfolder cannot be used, or after a disk error. Called by the writer's thread; waits for the disk."""
        self.tidy()
        parts = encode(content, place, self._fingerprint)
        nbytes = sum(len(part) for part in parts)
        if self.paused or not self._folder.takes(place) or not self._make_room(place, nbytes):
            return False
        try:
            self._folder.write(place, parts)
        except OSError as error:
            self._back_off(error)
            if _kind_of(error) == "full":  # By other files, whatever our budget is: a cache makes room.
                self._shrink(nbytes)
            return False
        self._pause_seconds = _FIRST_PAUSE_SECONDS
        entry = Entry(place, nbytes, self._clock())
        with self._lock:
            self._totals.writes += 1
            self._totals.write_bytes += nbytes
            self._strays.pop(place, None)  # This file has replaced it.
            if self._index.has_parent(place):
                self._index.add(entry)
                return True
            self._leaving_bytes += nbytes
        self._delete(entry)  # Meanwhile a load found its parent damaged.
        return False

    def tidy(self) -> None:
        """Delete damaged files and write times of use. Called by the writer's thread."""
        while self._doomed:
            self._delete(self._doomed.popleft())
        while self._unstamped:
            place = self._unstamped.popleft()
            try:
                self._folder.stamp(place)
            except OSError as error:
                self._count(_kind_of(error), str(error))

    def look_again(self) -> None:
        """Take in what was copied into the folder since the last scan, and evict down to the budget. Called
        by the writer's thread; waits for the disk."""
        found = self._scan(self._knows).found
        with self._lock:
            doomed = {entry.place for entry in self._doomed}
            new = {place: FoundFile(place, nbytes, 0.0) for place, nbytes in self._strays.items()}
            new |= {file.place: file for file in found if file.place not in doomed}
            self._strays = {file.place: file.nbytes for file in self._index.restore(new.values())}
            held = self._held_bytes()
        self._shrink(held - self._budget_bytes)

    def _knows(self, place: Place) -> bool:
        with self._lock:
            entry = self._index.get(place.key)
            return entry is not None and entry.place == place

    def statistics(self) -> DiskCounters:
        with self._lock:
            return msgspec.structs.replace(
                self._totals,
                files=len(self._index),
                nbytes=self._index.nbytes,
                errors=dict(self._totals.errors),
            )

    def check_integrity(self) -> list[str]:
        """Return violated invariants in words, empty if none: an alarm, never a crash. O(files)."""
        with self._lock:
            return self._index.check_integrity()

    def fail(self, error: Exception) -> None:
        """Count an unexpected exception."""
        self._count("io", f"{type(error).__name__}: {error}")

    def _scan(self, known: Callable[[Place], bool] | None) -> Scan:
        scan = self._folder.scan(known)
        with self._lock:
            self._totals.errors["foreign"] += scan.other_formats
        for error in scan.errors:
            self._count(_kind_of(error), str(error))
        return scan

    def _held_bytes(self) -> int:
        return self._index.nbytes + self._leaving_bytes + sum(self._strays.values())

    def _make_room(self, place: Place, nbytes: int) -> bool:
        """Evict until the file fits, unless its path would not fit even alone."""
        with self._lock:
            needed = self._index.path_bytes(place) + nbytes + self._leaving_bytes
            if needed > self._budget_bytes or not self._index.has_parent(place):
                return False
            if place.parent_tokens:
                self._index.touch(place.parent)  # So that everything else is evicted before its path.
            held = self._held_bytes()
        return self._shrink(held + nbytes - self._budget_bytes)

    def _shrink(self, nbytes: int) -> bool:
        """Evict at least this much, or everything."""
        while nbytes > 0:
            with self._lock:
                stray = bool(self._strays)
                victim = Entry(*self._strays.popitem()) if stray else self._index.oldest()
                if victim is None:
                    return False
                if stray:
                    self._leaving_bytes += victim.nbytes
                else:
                    self._forget(victim.place.key)
                self._totals.evicted_files += 1
            nbytes -= victim.nbytes
            if not self._delete(victim):
                return False
        return True

    def _forget(self, key: Key) -> list[Entry]:
        """Remove an entry and its descendants from the index, under the lock. The caller deletes the files
        later."""
        forgotten = self._index.remove(key)
        self._leaving_bytes += sum(entry.nbytes for entry in forgotten)
        return forgotten

    def _delete(self, entry: Entry) -> bool:
        """Delete a file. Return whether its bytes are free. If not, they count against the budget until the
        next start."""
        try:
            self._folder.delete(entry.place)
        except OSError as error:
            self._back_off(error)
            return False
        with self._lock:
            self._leaving_bytes -= entry.nbytes
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
