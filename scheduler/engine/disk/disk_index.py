"""The index of the disk tier's files, in the order of their use.

Host memory only: it touches no file. `disk_tier.py` alone calls it, under its lock. A block names its
predecessor, and that is all: one without it is never matched, so never used, and ages out. A use of a block
is a later use of all before it, so that the end of a chain is evicted before its beginning.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from itertools import takewhile

from scheduler.engine.disk.block_chain import BLOCK_TOKENS, Chain, Key, Place


@dataclass(slots=True, eq=False)
class Entry:
    """A file on disk."""

    place: Place
    nbytes: int
    used: float = 0.0
    """When a scan found it last used, in seconds since the epoch."""
    stamped: float = float("-inf")
    """When its use was last written to the file system, by the tier's clock."""


class DiskIndex:
    """`nbytes` is the sum of the entries' sizes."""

    def __init__(self) -> None:
        self._entries: OrderedDict[Place, Entry] = OrderedDict()  # Least recently used first.
        self._snapshots: dict[Key, set[Place]] = {}  # By predecessor.
        self.nbytes = 0

    def __len__(self) -> int:
        return len(self._entries)

    def get(self, place: Place) -> Entry | None:
        return self._entries.get(place)

    def add(self, entry: Entry) -> None:
        """Add the most recently used entry, in the place of an earlier file of its name."""
        self.remove(entry.place)
        self._entries[entry.place] = entry
        self.nbytes += entry.nbytes
        if entry.place.kind != "b":
            self._snapshots.setdefault(entry.place.predecessor, set()).add(entry.place)

    def restore(self, found: Collection[Entry]) -> None:
        """Add what a scan found, in the order of its use."""
        used: dict[Key, float] = {}
        for entry in sorted(found, key=lambda entry: -entry.place.tokens_before):
            # Only the end of a path is stamped: its time is also that of what is before it.
            key, before = entry.place.key, entry.place.predecessor
            used[key] = max(entry.used, used.get(key, 0.0))
            used[before] = max(used[key], used.get(before, 0.0))
        for entry in sorted(found, key=lambda entry: (used[entry.place.key], -entry.place.tokens_before)):
            self.add(entry)

    def touch(self, path: Sequence[Place]) -> None:
        """Mark a path as used now, its beginning last."""
        for place in reversed(path):
            if place in self._entries:
                self._entries.move_to_end(place)

    def remove(self, place: Place) -> None:
        """Forget the entry, if there is one."""
        if (entry := self._entries.pop(place, None)) is None:
            return
        self.nbytes -= entry.nbytes
        if place.kind != "b":
            self._snapshots[place.predecessor].remove(place)
            if not self._snapshots[place.predecessor]:
                del self._snapshots[place.predecessor]

    def oldest(self) -> Place | None:
        return next(iter(self._entries), None)

    def match(self, chain: Chain, limit: int) -> int:
        """Return how many leading tokens are in the index as blocks, at most `limit`."""
        found = takewhile(self._entries.__contains__, chain.blocks(limit))
        return BLOCK_TOKENS * sum(1 for _ in found)

    def deepest_snapshot(self, chain: Chain, limit: int) -> int:
        """Return the position of the deepest snapshot that can be used, at most `limit`; 0: there is none."""
        limit = min(limit, chain.tokens)
        for blocks in range(self.match(chain, limit) // BLOCK_TOKENS, -1, -1):
            snapshots = self._snapshots.get(chain.key(blocks), ())
            for position in sorted({place.position for place in snapshots}, reverse=True):
                if position <= limit and chain.snapshot(position) in self._entries:
                    return position
        return 0
