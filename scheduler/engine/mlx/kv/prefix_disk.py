"""The prefix cache's use of the disk tier: write-behind, and reads on a miss.

The engine's thread calls it between steps; no call waits for a disk. A request whose prefix is on disk waits
(others run) until it is read into the prefix cache, and is then admitted with a prefix hit. Writing copies
one block at a time from cached segments, so that the 100 blocks of a long prompt delay no step much.
"""

from __future__ import annotations

import sys
from array import array
from collections import deque
from concurrent.futures import Future
from dataclasses import dataclass

from scheduler.engine.disk.block_chain import BLOCK_TOKENS, Chain
from scheduler.engine.disk.block_file import Content
from scheduler.engine.disk.disk_tier import DiskTier, ReadOutcome
from scheduler.engine.mlx.device import device
from scheduler.engine.mlx.kv.cache_layout import CacheLayout, RowState
from scheduler.engine.mlx.kv.content_codec import layers_of, span_content, state_content, state_of
from scheduler.engine.mlx.kv.kv_segment import KvSegment
from scheduler.engine.mlx.packed import KeysValues, span_of
from scheduler.engine.prefix.nodes import Known
from scheduler.engine.prefix.prefix_cache import PrefixCache
from scheduler.engine.sequence import EngineSequence
from scheduler.shared.counters import DiskCounters
from scheduler.shared.device_errors import is_device_error
from scheduler.shared.token_ids import common_run

_SLICE_TOKENS = 16 * BLOCK_TOKENS
"""The size of one read, which is in host memory beside the arrays made from it."""
_MOST_PATHS = 64
"""The bound on paths that wait to be written; the oldest are dropped for newer ones, which mostly extend
them."""
_BLOCKS_WHILE_IDLE = 8


@dataclass(slots=True, eq=False)
class _Fetch:
    """The read of a waiting request's prefix."""

    known: Known[KvSegment, RowState]
    chain: Chain
    end: int
    """The end of the blocks to read."""
    snapshot: int
    """The position of the state, which is read last; 0: none is needed."""
    start: int
    reading: Future[ReadOutcome]


@dataclass(slots=True)
class _Path:
    known: Known[KvSegment, RowState]
    chain: Chain
    safe: bool = False
    """Whether the device was waited for since the path was computed, and reported no failure."""
    block_end: int = 0
    state_position: int = 0
    """What was handed over last: if it is not there, the disk has no room for it, or does not take it."""


class PrefixDisk:
    def __init__(
        self, tier: DiskTier, prefixes: PrefixCache[KvSegment, RowState], layout: CacheLayout
    ) -> None:
        self.tier = tier
        self._restored_tokens = 0
        self._prefixes = prefixes
        self._layout = layout
        self._fetches: dict[int, _Fetch] = {}
        self._considered: set[int] = set()
        self._chains: dict[int, Chain] = {}
        """Chains of requests that wait while the folder is looked at again."""
        self._paths: deque[_Path] = deque(maxlen=_MOST_PATHS)

    def statistics(self) -> DiskCounters:
        found = self.tier.statistics()
        found.hit_tokens = self._restored_tokens
        return found

    # --- reading

    def preparing(self, sequence: EngineSequence) -> bool:
        """Return whether a waiting request's prefix is still being read from disk. Called in every turn; the
        first call decides whether anything is worth reading."""
        number = sequence.request_id
        if (fetch := self._fetches.get(number)) is not None:
            return self._continue(number, fetch)
        if number in self._considered:
            return False
        chain = self._chains.pop(number, None) or self.tier.chain(sequence.tokens, sequence.submit.salt)
        known = self._prefixes.find(sequence.known).length
        limit = len(sequence.tokens) - 1
        end, snapshot = self._readable(chain, limit)
        if max(known, end, snapshot) + BLOCK_TOKENS <= limit and self.tier.looks_again():
            self._chains[number] = chain
            return True
        if max(end, snapshot) < known + BLOCK_TOKENS and not (snapshot > known and self._layout.needs_state):
            self._considered.add(number)
            return False
        if any(self._covers(fetch, sequence, max(end, snapshot)) for fetch in self._fetches.values()):
            return True  # Another request's read covers it and will put it in memory.
        start = known // BLOCK_TOKENS * BLOCK_TOKENS
        self._considered.add(number)
        reading = self._read(chain, start, end, snapshot)
        self._fetches[number] = _Fetch(sequence.known, chain, end, snapshot, start, reading)
        return True

    def forget(self, request_id: int) -> None:
        """Drop what is known of a request that was admitted, cancelled or refused."""
        self._considered.discard(request_id)
        self._chains.pop(request_id, None)
        if (fetch := self._fetches.pop(request_id, None)) is not None:
            fetch.reading.cancel()

    def _readable(self, chain: Chain, limit: int) -> tuple[int, int]:
        """Return where the blocks worth reading end, and the position of the state that the model needs
        there."""
        if not self._layout.needs_state:
            return self.tier.match(chain, limit), 0
        snapshot = self.tier.deepest_snapshot(chain, limit)
        return snapshot // BLOCK_TOKENS * BLOCK_TOKENS, snapshot

    @staticmethod
    def _covers(fetch: _Fetch, sequence: EngineSequence, tokens: int) -> bool:
        same = fetch.known.salt == sequence.submit.salt and tokens <= max(fetch.end, fetch.snapshot)
        return same and common_run(fetch.known.tokens, 0, sequence.tokens, tokens) == tokens

    def _read(self, chain: Chain, start: int, end: int, snapshot: int) -> Future[ReadOutcome]:
        last = min(end, start + _SLICE_TOKENS)
        return self.tier.start_read(chain, start, last, snapshot=snapshot if last == end else 0)

    def _continue(self, number: int, fetch: _Fetch) -> bool:
        if not fetch.reading.done():
            return True
        expected = min(fetch.end, fetch.start + _SLICE_TOKENS)
        fetch.start = self._take(fetch, fetch.reading.result())
        if fetch.start == expected < fetch.end:
            fetch.reading = self._read(fetch.chain, fetch.start, fetch.end, fetch.snapshot)
            return True
        del self._fetches[number]
        return False

    def _take(self, fetch: _Fetch, outcome: ReadOutcome) -> int:
        """Insert what was read into the prefix cache. Return where the inserted blocks end."""
        start = fetch.start
        try:
            layers: list[KeysValues] = []
            for block in outcome.blocks:
                end = start + BLOCK_TOKENS
                layers = layers_of(block, self._layout.packing)
                if not self._insert(fetch, layers, start, end):
                    return start
                start = end
            if outcome.snapshot is not None:
                self._insert(fetch, layers_of(outcome.snapshot, self._layout.packing), start, fetch.snapshot)
                self._prefixes.attach(fetch.known, state_of(outcome.snapshot), fetch.snapshot)
        except Exception as error:  # The bytes are intact, and another program's: a miss.
            if is_device_error(error):
                raise
            print(f"prefix cache on disk: {type(error).__name__}: {error}", file=sys.stderr)
        return start

    def _insert(self, fetch: _Fetch, layers: list[KeysValues], start: int, end: int) -> bool:
        """Insert positions [start, end). Return whether all of them are in memory now: not if there is no
        room, or if the prefix before them was evicted."""

        def cut(first: int, last: int) -> KvSegment:
            span = first - start, last - start
            return KvSegment(
                [(span_of(keys, *span), span_of(values, *span)) for keys, values in layers], last - first
            )

        there = self._prefixes.match(fetch.known, end).length
        if there < start:
            return False  # The prefix before it has been evicted.
        self._restored_tokens += end - there
        self._prefixes.insert(fetch.known, cut, end=end)
        return self._prefixes.match(fetch.known, end).length == end

    # --- writing

    def note(self, tokens: array[int], salt: str) -> None:
        """Queue these tokens, which are in the prefix cache, to write the part of them that is not on
        disk."""
        self._paths.append(_Path(Known(tokens, salt), self.tier.chain(tokens, salt)))

    def advance(self, idle: bool) -> bool:
        """Hand over one block or state to the writer, several while idle. Return whether there is more."""
        for _ in range(_BLOCKS_WHILE_IDLE if idle else 1):
            if self._paths and not self._write_next(self._paths[0]):
                self._paths.popleft()
        return bool(self._paths or self._fetches or self._chains)

    def _write_next(self, path: _Path) -> bool:
        """Hand over the next missing piece of a path. Return False if none is left, or it was dropped or
        evicted."""
        if not path.safe:  # What is written outlives the process.
            device().wait()
            path.safe = True
        match = self._prefixes.match(path.known)
        lease = self._prefixes.pin(match)
        try:
            there = self.tier.touch(path.chain)
            end = there + BLOCK_TOKENS
            if end <= lease.length:
                if end <= path.block_end:
                    return False
                path.block_end = end
                block = Content(span_content(lease.pieces, there, end))
                return self.tier.put_block_nowait(path.chain, end, block)
            for node in match.path:
                position, state = node.end, node.snapshot
                if state is None or not path.state_position < position <= match.length:
                    continue
                base = position // BLOCK_TOKENS * BLOCK_TOKENS
                if base > there or self.tier.has_snapshot(path.chain, position):
                    continue
                path.state_position = position
                tail = span_content(lease.pieces, base, position)
                return self.tier.put_snapshot_nowait(path.chain, position, state_content(state, tail))
            return False
        finally:
            self._prefixes.release(lease)
