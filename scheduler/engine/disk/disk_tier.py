"""The prefix cache's disk tier for the engine: files of blocks within a budget, in the order of their use.

No method waits for a disk, and none raises. The engine's thread looks up what is there (host memory only),
hands over what is worth keeping, already detached from the device, and starts readings, which it polls
between steps. One daemon thread works on the folder: readings first, for which requests wait; then what is to
be written, bounded in bytes. So a reading waits for one file's write at most. What a file has is opaque here,
and a damaged one is a counted miss.
"""

from __future__ import annotations

import errno
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, InvalidStateError
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Final, Literal, TypeAlias, get_args

import msgspec

from scheduler.engine.disk.block_chain import BLOCK_TOKENS, Chain, Place
from scheduler.engine.disk.block_file import Content, Damage, DamageKind, decode, encode
from scheduler.engine.disk.disk_folder import DiskFolder
from scheduler.engine.disk.disk_index import DiskIndex, Entry
from scheduler.shared.counters import DiskCounters

ErrorKind: TypeAlias = DamageKind | Literal["missing", "full", "denied", "io"]
_ERRNO_KINDS: Final[Mapping[int | None, ErrorKind]] = {
    errno.ENOENT: "missing",
    errno.ELOOP: "foreign",
    **dict.fromkeys((errno.ENOSPC, errno.EDQUOT), "full"),
    **dict.fromkeys((errno.EACCES, errno.EPERM, errno.EROFS), "denied"),
}
_LOOK_SECONDS = 5.0
"""Time between two looks for files that were copied into the folder."""
_LOOK_PATIENCE_SECONDS = 1.0
"""Requests wait at most this long for a look, which takes milliseconds unless the disk is slow."""
_STAMP_SECONDS = 60.0
_MOST_NAMED = 10
"""Errors of one kind that are logged; further ones are only counted."""
_FIRST_PAUSE_SECONDS, _LONGEST_PAUSE_SECONDS = 1.0, 60.0


@dataclass(frozen=True, slots=True)
class ReadOutcome:
    """What was read and was intact."""

    blocks: tuple[Content, ...] = ()
    """Consecutive, from the start of the read; fewer than requested if one was damaged or missing."""
    snapshot: Content | None = None
    """The snapshot, if all requested blocks were found."""


class DiskTier:
    """One thread (the engine's) calls it; any thread may call `statistics`. There is never more than the
    budget in the folder, the file being written included."""

    def __init__(
        self,
        folder: Path,
        fingerprint: str,
        budget_bytes: int,
        *,
        queue_bytes: int = 256 << 20,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Lock the folder, look into it, and evict down to the budget. Raise DiskTierUnavailable, or
        OSError."""
        self._fingerprint = fingerprint
        self._budget_bytes = budget_bytes
        self._queue_bytes = queue_bytes
        self._clock = clock
        self._folder = DiskFolder(folder)
        self._changed = threading.Condition()  # Guards the fields below; not held during disk operations.
        self._index = DiskIndex()
        self._totals = DiskCounters(
            errors=dict.fromkeys((*get_args(DamageKind), "missing", "full", "denied", "io"), 0)
        )
        self._urgent: deque[Callable[[], None]] = deque()  # Readings and looks.
        self._work: deque[Callable[[], None]] = deque()
        self._pending: set[Place] = set()  # Queued or being written.
        self._closing = self._working = False
        self._resume_at, self._pause_seconds = float("-inf"), _FIRST_PAUSE_SECONDS
        self._looking, self._looked_at = True, clock()
        self._look()
        self._thread = threading.Thread(target=self._run, name="disk tier", daemon=True)
        self._thread.start()

    def chain(self, tokens: Sequence[int], salt: str) -> Chain:
        """Return the keys of these tokens, which all other calls take. Computed once: keep the chain with the
        tokens."""
        return Chain(self._fingerprint, salt, tokens)

    def match(self, chain: Chain, limit: int) -> int:
        """Return how many leading tokens can be read as blocks: a multiple of BLOCK_TOKENS, at most `limit`.
        Changes nothing. About 7 µs for each block found, the first time that the chain is used."""
        with self._changed:
            return self._index.match(chain, limit)

    def deepest_snapshot(self, chain: Chain, limit: int) -> int:
        """Return the deepest position, at most `limit`, with a snapshot and all blocks that it needs; 0:
        none."""
        with self._changed:
            return self._index.deepest_snapshot(chain, limit)

    def looks_again(self) -> bool:
        """Return whether the folder is being searched for files that were copied into it, which begins if it
        was not for some seconds. To be called on a miss: while it is true, more may be found."""
        now = self._clock()
        with self._changed:
            if not self._looking and now - self._looked_at >= _LOOK_SECONDS:
                self._looking, self._looked_at = True, now
                self._add(self._urgent, self._look)
            return self._looking and now - self._looked_at < _LOOK_PATIENCE_SECONDS

    def touch(self, chain: Chain) -> int:
        """Mark these tokens as used, if only in memory, so that their blocks are evicted later. Return how
        many leading tokens are on disk or pending as blocks; `put_block_nowait` takes the blocks after."""
        with self._changed:
            if there := self._index.match(chain, chain.tokens):
                self._touch(chain.path(chain.block(there)))
            while there + BLOCK_TOKENS <= chain.tokens and self._knows(chain.block(there + BLOCK_TOKENS)):
                there += BLOCK_TOKENS
        return there

    def has_snapshot(self, chain: Chain, position: int) -> bool:
        """Return whether the snapshot is on disk or pending. Check it before copying one to the host."""
        with self._changed:
            return self._knows(chain.snapshot(position))

    def put_block_nowait(self, chain: Chain, end: int, content: Content) -> bool:
        """Write the block of tokens [end - BLOCK_TOKENS, end), after the blocks before it. Return False if it
        was dropped, which is counted. The bytes must not change afterwards."""
        return self._put(chain.path(chain.block(end)), content)

    def put_snapshot_nowait(self, chain: Chain, position: int, content: Content) -> bool:
        """Write the state right after `position` tokens, as `put_block_nowait`. It must also contain what
        layers that can be cut hold between the last block's end and `position`, or it cannot be restored."""
        return self._put(chain.path(chain.snapshot(position)), content)

    def start_read(self, chain: Chain, start: int, end: int, *, snapshot: int = 0) -> Future[ReadOutcome]:
        """Read the whole blocks in tokens [start, end) and, if not 0, the snapshot at that position.

        `start` is a multiple of BLOCK_TOKENS. All of it is in host memory when the reading ends: read a
        long prefix piece by piece. `cancel` ends the read before its next file; it never ends with an error.
        """
        assert start % BLOCK_TOKENS == 0, "a read begins where a block does"
        ends = range(start + BLOCK_TOKENS, min(end, chain.tokens) + 1, BLOCK_TOKENS)
        blocks = [chain.block(block_end) for block_end in ends]
        # The snapshot first: without it the blocks are useless if both were requested.
        states = [chain.snapshot(snapshot)] if snapshot else []
        outcome = Future[ReadOutcome]()
        with self._changed:
            for place in (*states, *blocks[-1:]):
                self._touch(chain.path(place))
            self._add(self._urgent, partial(self._read, [*states, *blocks], len(states), outcome))
        return outcome

    def statistics(self) -> DiskCounters:
        with self._changed:
            files, nbytes, errors = len(self._index), self._index.nbytes, dict(self._totals.errors)
            return msgspec.structs.replace(self._totals, files=files, nbytes=nbytes, errors=errors)

    def flush(self, deadline_seconds: float) -> bool:
        """Wait until everything put is written or dropped. Return False on timeout."""
        with self._changed:
            return self._changed.wait_for(lambda: not (self._due or self._working), deadline_seconds)

    def close(self, deadline_seconds: float) -> bool:
        """Write and read what was asked for, end the thread, and unlock the folder, for another tier of this
        process: an engine's ends with it. Return False on timeout. Nothing may be called afterwards."""
        with self._changed:
            self._closing = True
            self._changed.notify_all()
        self._thread.join(deadline_seconds)
        return not self._thread.is_alive()

    # --- under the lock

    def _put(self, path: Sequence[Place], content: Content) -> bool:
        with self._changed:
            if self._knows(path[-1]):
                self._touch(path)
                return True
            if self._totals.pending_bytes + content.nbytes > self._queue_bytes or self._paused:
                self._totals.dropped_writes += 1
                return False
            self._pending.add(path[-1])
            self._totals.pending_bytes += content.nbytes
            self._add(self._work, partial(self._write, path, content))
            return True

    def _knows(self, place: Place) -> bool:
        return place in self._pending or self._index.get(place) is not None

    def _touch(self, path: Sequence[Place]) -> None:
        """Mark a path as used now: also on disk, for its end, once a minute."""
        self._index.touch(path)
        entry, now = self._index.get(path[-1]), self._clock()
        if entry is not None and now - entry.stamped >= _STAMP_SECONDS:
            entry.stamped = now
            self._add(self._work, partial(self._folder.stamp, entry.place))

    def _add(self, queue: deque[Callable[[], None]], work: Callable[[], None]) -> None:
        queue.append(work)
        self._changed.notify_all()

    @property
    def _due(self) -> deque[Callable[[], None]]:
        return self._urgent or self._work

    @property
    def _paused(self) -> bool:
        """Return whether writes are paused after a disk error."""
        return self._clock() < self._resume_at

    # --- the thread

    def _run(self) -> None:
        while self._run_next():
            pass
        self._folder.release()

    def _run_next(self) -> bool:
        """A function of its own, so that no local of the waiting thread keeps bytes alive."""
        with self._changed:
            self._working = False
            self._changed.notify_all()
            self._changed.wait_for(lambda: self._due or self._closing)
            if not self._due:
                return False
            self._working, work = True, self._due.popleft()
        try:
            work()
        except OSError as error:
            self._report(error)
        except Exception as error:  # Out of memory, for example: the thread must survive it.
            self._count("io", f"{type(error).__name__}: {error}")
        return True

    def _look(self) -> None:
        """Take in what has come into the folder since the last look, and evict down to the budget."""
        try:
            found = list(self._folder.look(self._report))
            with self._changed:
                self._index.restore([one for one in found if self._index.get(one.place) is None])
            self._shrink(self._budget_bytes)
        finally:
            with self._changed:
                self._looking = False

    def _read(self, places: Sequence[Place], states: int, outcome: Future[ReadOutcome]) -> None:
        """Read these files, of which the first `states` are snapshots, up to the first that is lost."""
        found = ReadOutcome()
        try:
            contents: list[Content] = []
            for place in places:
                if outcome.cancelled() or (content := self._loaded(place)) is None:
                    break
                contents.append(content)
            whole = states and len(contents) == len(places)
            found = ReadOutcome(tuple(contents[states:]), contents[0] if whole else None)
        finally:
            with suppress(InvalidStateError):  # It was cancelled.
                outcome.set_result(found)

    def _loaded(self, place: Place) -> Content | None:
        """Return the verified content; None is a miss. A damaged or missing file is matched no more."""
        with self._changed:
            entry = self._index.get(place)
        if entry is None:
            return None
        try:
            content = decode(self._folder.read(place, entry.nbytes), place, self._fingerprint)
        except Damage as damage:
            self._count(damage.kind, f"{place.file_name} is damaged")
        except OSError as error:
            self._report(error)
        else:
            with self._changed:
                self._totals.reads += 1
                self._totals.read_bytes += entry.nbytes
            return content
        if not self._delete(place):
            with self._changed:
                self._index.remove(place)
                self._budget_bytes -= entry.nbytes  # It stays, until the next start.
        return None

    def _write(self, path: Sequence[Place], content: Content) -> None:
        kept = False
        try:
            kept = self._saved(path, content)
        finally:
            with self._changed:
                self._pending.remove(path[-1])
                self._totals.pending_bytes -= content.nbytes
                self._totals.dropped_writes += not kept

    def _saved(self, path: Sequence[Place], content: Content) -> bool:
        """Write the file at the end of a path. Return False if the one before it is gone, if there is no room
        beside the path, or after a disk error."""
        *before, place = path
        parts = encode(content, place, self._fingerprint)
        nbytes = sum(len(part) for part in parts)
        with self._changed:
            stands = all(self._index.get(one) is not None for one in before[-1:])
            if self._paused or nbytes > self._budget_bytes or not stands:
                return False
            self._index.touch(before)  # So that everything else is evicted before it.
        if not self._shrink(self._budget_bytes - nbytes, before[-1:]):
            return False
        try:
            self._folder.write(place, parts)
        except OSError as error:
            self._back_off(error)
            if _kind_of(error) == "full":  # By other files, whatever our budget is: a cache makes room.
                self._shrink(self._index.nbytes - nbytes)
            return False
        self._pause_seconds = _FIRST_PAUSE_SECONDS
        with self._changed:
            self._totals.writes += 1
            self._totals.write_bytes += nbytes
            self._index.add(Entry(place, nbytes, stamped=self._clock()))
            self._index.touch(path)
        return True

    def _shrink(self, to_bytes: int, kept: Sequence[Place] = ()) -> bool:
        """Evict down to these bytes. Return False if only what is kept, and newer, is left."""
        while True:
            with self._changed:
                victim = self._index.oldest()
                if self._index.nbytes <= to_bytes or victim is None:
                    return self._index.nbytes <= to_bytes
                if victim in kept:
                    return False
                self._index.touch([victim])  # If it cannot be deleted, all others go before it.
            if not self._delete(victim):
                return False
            self._totals.evicted_files += 1

    def _delete(self, place: Place) -> bool:
        """Delete a file. Return whether its bytes are free."""
        try:
            self._folder.delete(place)
        except OSError as error:
            self._back_off(error)
            return False
        with self._changed:
            self._index.remove(place)
        return True

    def _back_off(self, error: OSError) -> None:
        """Count an error and pause writes: exponential backoff."""
        self._report(error)
        self._resume_at = self._clock() + self._pause_seconds
        self._pause_seconds = min(2 * self._pause_seconds, _LONGEST_PAUSE_SECONDS)

    def _report(self, error: OSError) -> None:
        self._count(_kind_of(error), str(error))

    def _count(self, kind: ErrorKind, why: str) -> None:
        with self._changed:
            self._totals.errors[kind] += 1
            count = self._totals.errors[kind]
        if count <= _MOST_NAMED:
            last = " (further errors of this kind are only counted)" if count == _MOST_NAMED else ""
            print(f"disk tier: {kind}: {why}{last}", file=sys.stderr)


def _kind_of(error: OSError) -> ErrorKind:
    return _ERRNO_KINDS.get(error.errno, "io")
