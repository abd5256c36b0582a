"""The prefix cache's disk tier for the engine: no method waits for a disk, and none raises.

It owns two daemon threads: a writer, behind a queue that is bounded in bytes, and a reader. The engine's
thread looks up what is on disk (host memory only), hands over what is worth keeping, already detached from
the device, and starts readings, which it polls between steps. The content of a file is opaque here.
`disk_store.py` handles damaged files and a full disk, `block_chain.py` names the files.
"""

from __future__ import annotations

import queue
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future, InvalidStateError
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from scheduler.engine.disk.block_chain import BLOCK_TOKENS, Chain, Place
from scheduler.engine.disk.block_file import Content
from scheduler.engine.disk.disk_folder import DiskFolder
from scheduler.engine.disk.disk_store import DiskStore
from scheduler.shared.counters import DiskCounters

_LOOK_SECONDS = 5.0
"""Time between two looks for files that were copied into the folder."""
_LOOK_PATIENCE_SECONDS = 1.0
"""Requests wait at most this long for a look, which takes milliseconds unless the disk is slow."""


@dataclass(frozen=True, slots=True)
class ReadOutcome:
    """What was read and was intact."""

    blocks: tuple[Content, ...] = ()
    """Consecutive, from the start of the read; fewer than requested if one was damaged or missing."""
    snapshot: Content | None = None
    """The snapshot, if all requested blocks were found."""


@dataclass(frozen=True, slots=True)
class _Reading:
    blocks: tuple[Place, ...]
    snapshot: Place | None
    outcome: Future[ReadOutcome] = field(default_factory=Future)


class DiskTier:
    """One thread (the engine's) calls it; any thread may call `statistics`."""

    def __init__(
        self,
        folder: Path,
        fingerprint: str,
        budget_bytes: int,
        *,
        queue_bytes: int = 256 << 20,
        lone_snapshots: bool = False,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Lock and scan the folder (0.3 s for 10,000 files) and evict down to the budget. `lone_snapshots`:
        as `lone` of `Chain`.

        Raise DiskTierUnavailable, with the reason in words, also if another service uses the folder.
        """
        self._fingerprint = fingerprint
        self._lone_snapshots = lone_snapshots
        self._queue_bytes = queue_bytes
        self._folder = DiskFolder(folder)
        self._store = DiskStore(self._folder, fingerprint, budget_bytes, clock)
        # Guards the fields below; the writer waits on it for work, `flush` for the end of work. The store's
        # own lock may be taken under this one, never the other way round.
        self._changed = threading.Condition()
        self._queue: deque[tuple[Sequence[Place], Content]] = deque()  # What to write is the end of a path.
        self._pending: set[Place] = set()  # Queued or being written.
        self._pending_bytes = self._dropped_writes = 0
        self._closing = self._working = self._looking = False
        self._clock = clock
        self._looked_at = clock()
        self._readings: queue.SimpleQueue[_Reading | None] = queue.SimpleQueue()
        self._writer = threading.Thread(target=self._write, name="disk writer", daemon=True)
        self._reader = threading.Thread(target=self._read, name="disk reader", daemon=True)
        self._writer.start()
        self._reader.start()

    def chain(self, tokens: Sequence[int], salt: str) -> Chain:
        """Return the keys of these tokens, which all other calls take. Computed once: keep the chain with the
        tokens."""
        return Chain(self._fingerprint, salt, tokens, self._lone_snapshots)

    def match(self, chain: Chain, limit: int) -> int:
        """Return how many leading tokens can be read as blocks: a multiple of BLOCK_TOKENS, at most `limit`.
        Changes nothing. About 7 µs for each block found, the first time that the chain is used."""
        return self._store.match(chain, limit)

    def deepest_snapshot(self, chain: Chain, limit: int) -> int:
        """Return the deepest position, at most `limit`, with a snapshot and all blocks that it needs; 0:
        none."""
        return self._store.deepest_snapshot(chain, limit)

    def looks_again(self) -> bool:
        """Return whether the folder is being searched for files that were copied into it, which begins if it
        was not for some seconds. To be called on a miss: while it is true, more may be found."""
        now = self._clock()
        with self._changed:
            if not self._looking and now - self._looked_at >= _LOOK_SECONDS:
                self._looking, self._looked_at = True, now
                self._changed.notify_all()
            return self._looking and now - self._looked_at < _LOOK_PATIENCE_SECONDS

    def touch(self, chain: Chain) -> int:
        """Mark these tokens as used, if only in memory, so that their blocks are evicted later. Return how
        many leading tokens are on disk or pending as blocks; `put_block_nowait` takes the blocks after."""
        there = self._store.match(chain, chain.tokens)
        with self._changed:
            if there:
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
        """Write the state right after `position` tokens, after the blocks up to there. It must also contain
        what layers that can be cut hold between the last block's end and `position`, or it cannot be
        restored. Return False if it was dropped, which is counted. The bytes must not change afterwards."""
        return self._put(chain.path(chain.snapshot(position)), content)

    def start_read(self, chain: Chain, start: int, end: int, *, snapshot: int = 0) -> Future[ReadOutcome]:
        """Read the whole blocks in tokens [start, end) and, if not 0, the snapshot at that position.

        `start` is a multiple of BLOCK_TOKENS. All of it is in host memory when the reading ends: read a
        long prefix piece by piece. `cancel` ends the read before its next file; it never ends with an error.
        """
        assert start % BLOCK_TOKENS == 0, "a read begins where a block does"
        ends = range(start + BLOCK_TOKENS, min(end, chain.tokens) + 1, BLOCK_TOKENS)
        blocks = tuple(chain.block(block_end) for block_end in ends)
        state = chain.snapshot(snapshot) if snapshot else None
        reading = _Reading(blocks, state)
        with self._changed:
            for place in (*([state] if state else []), *blocks[-1:]):
                self._touch(chain.path(place))
        self._readings.put(reading)
        return reading.outcome

    def statistics(self) -> DiskCounters:
        found = self._store.statistics()
        with self._changed:
            found.pending_bytes, found.dropped_writes = self._pending_bytes, self._dropped_writes
        return found

    def flush(self, deadline_seconds: float) -> bool:
        """Wait until everything put is written or dropped and damaged files are deleted. Return False on
        timeout."""
        with self._changed:
            return self._changed.wait_for(self._is_flushed, deadline_seconds)

    def close(self, deadline_seconds: float) -> bool:
        """Write and read what was asked for, end both threads, and unlock the folder, for another tier of
        this process: an engine's ends with it. Return False on timeout. Nothing may be called afterwards."""
        self._readings.put(None)
        with self._changed:
            self._closing = True
            self._changed.notify_all()
        for thread in (self._writer, self._reader):
            thread.join(deadline_seconds)
        return not (self._writer.is_alive() or self._reader.is_alive())

    def _put(self, path: Sequence[Place], content: Content) -> bool:
        nbytes = content.nbytes
        with self._changed:
            if self._knows(path[-1]):
                self._touch(path)
                return True
            if self._pending_bytes + nbytes > self._queue_bytes or self._store.paused:
                self._dropped_writes += 1
                return False
            self._queue.append((path, content))
            self._pending.add(path[-1])
            self._pending_bytes += nbytes
            self._changed.notify_all()
            return True

    def _knows(self, place: Place) -> bool:
        return place in self._pending or self._store.holds(place)

    def _touch(self, path: Sequence[Place]) -> None:
        self._store.touch(path)
        if self._store.untidy:
            self._changed.notify_all()

    def _is_flushed(self) -> bool:
        return not (self._queue or self._working or self._looking or self._store.untidy)

    def _write(self) -> None:
        """The writer's thread."""
        while self._wait_for_work():
            self._store.tidy()
            self._look()
            self._save_next()
        self._folder.release()

    def _wait_for_work(self) -> bool:
        """Wait for work. Return False when the tier is closed and no work is left."""
        with self._changed:
            self._working = False
            self._changed.notify_all()
            self._changed.wait_for(lambda: self._closing or not self._is_flushed())
            self._working = not self._is_flushed()
            return self._working

    def _look(self) -> None:
        if not self._looking:
            return
        try:
            self._store.look_again()
        except Exception as error:  # Not an OSError: the thread must survive it, too.
            self._store.fail(error)
        with self._changed:
            self._looking = False

    def _save_next(self) -> None:
        """A function of its own, so that no local of the waiting thread keeps the bytes alive."""
        with self._changed:
            if not self._queue:
                return
            path, content = self._queue.popleft()
        kept = False
        try:
            kept = self._store.save(path, content)
        except Exception as error:  # Not an OSError: the thread must survive it, too.
            self._store.fail(error)
        with self._changed:
            self._pending.remove(path[-1])
            self._pending_bytes -= content.nbytes
            self._dropped_writes += not kept

    def _read(self) -> None:
        """The reader's thread."""
        while self._read_next():
            pass

    def _read_next(self) -> bool:
        """A function of its own, so that no local of the waiting thread keeps the bytes alive."""
        reading = self._readings.get()
        if reading is None:
            return False
        outcome = ReadOutcome()
        try:
            outcome = self._perform(reading)
        except Exception as error:  # Out of memory, for example: the reading must still end.
            self._store.fail(error)
        with self._changed:
            self._changed.notify_all()  # The writer may have something to delete.
        with suppress(InvalidStateError):  # It was cancelled.
            reading.outcome.set_result(outcome)
        return True

    def _perform(self, reading: _Reading) -> ReadOutcome:
        """Read the snapshot first: without it the blocks are useless if both were requested."""
        contents: list[Content] = []
        for place in (*([reading.snapshot] if reading.snapshot else []), *reading.blocks):
            if reading.outcome.cancelled():
                break
            if (content := self._store.load(place)) is None:
                break
            contents.append(content)
        if reading.snapshot is None:
            return ReadOutcome(tuple(contents))
        whole = len(contents) == 1 + len(reading.blocks)
        return ReadOutcome(tuple(contents[1:]), contents[0] if whole else None)
