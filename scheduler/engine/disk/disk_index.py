"""The index of the disk tier's files: which file needs which, and the order of eviction.

Host memory only: it touches no file. `disk_store.py` alone calls it, under its lock. Two rules hold after
every call: the parent of an entry is in the index too; and in the order of use an entry comes before its
parent, so that the least recently used entry never has children.
"""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Iterable
from dataclasses import dataclass

from scheduler.engine.disk.block_chain import BLOCK_TOKENS, Chain, Key, Place


@dataclass(frozen=True, slots=True)
class FoundFile:
    """What a scan knows of a file without opening it."""

    place: Place
    nbytes: int
    used: float
    """Seconds since the epoch."""


@dataclass(slots=True, eq=False)
class Entry:
    """A file on disk."""

    place: Place
    nbytes: int
    stamped: float = float("-inf")  # When its use was last written to the file system; the store's clock.


class DiskIndex:
    """`nbytes` is the sum of the entries' sizes after every call."""

    def __init__(self) -> None:
        self._entries: OrderedDict[Key, Entry] = OrderedDict()  # Least recently used first.
        self._children: dict[Key, set[Key]] = {}  # By parent.
        self._snapshots: dict[Key, Counter[int]] = {}  # By parent: the positions of its snapshots.
        self.nbytes = 0

    def __len__(self) -> int:
        return len(self._entries)

    def get(self, key: Key) -> Entry | None:
        return self._entries.get(key)

    def has_parent(self, place: Place) -> bool:
        """Return whether the parent that it needs is in the index. A block's parent must end where the block
        begins, so that no set of file names forms a cycle."""
        if place.parent_tokens == 0:
            return True
        parent = self._entries.get(place.parent)
        return (
            parent is not None and parent.place.kind == "b" and parent.place.position == place.parent_tokens
        )

    def add(self, entry: Entry) -> None:
        """Add the most recently used entry. Its parent is in the index, and it is new."""
        self._hold(entry)
        self.touch(entry.place.key)

    def restore(self, found: Iterable[FoundFile]) -> list[FoundFile]:
        """Take over what a scan found, as more recently used than all that is here. Return files without
        their parent, and duplicates."""
        used: dict[Key, float] = {}
        standing: set[Key] = set()  # What was here and has new files above it.
        orphans: list[FoundFile] = []
        for file in sorted(found, key=lambda file: file.place.parent_tokens):
            if self.has_parent(file.place) and file.place.key not in self._entries:
                self._hold(Entry(file.place, file.nbytes))
                used[file.place.key] = file.used
                if file.place.parent_tokens and file.place.parent not in used:
                    standing.add(file.place.parent)
            else:
                orphans.append(file)
        # `touch` stamps only the end of a path: propagate its time to the parents.
        for key in reversed(tuple(used)):
            place = self._entries[key].place
            if place.parent in used and place.parent_tokens:
                used[place.parent] = max(used[place.parent], used[key])
        for key in sorted(used, key=lambda key: (used[key], -self._entries[key].place.parent_tokens)):
            self._entries.move_to_end(key)
        for key in standing:
            self.touch(key)
        return orphans

    def touch(self, key: Key) -> Entry | None:
        """Mark an entry and its parents as used now: O(path). Return the entry, or None if it is not in the
        index."""
        entry = above = self._entries.get(key)
        while above is not None:
            self._entries.move_to_end(above.place.key)
            above = self._entries.get(above.place.parent) if above.place.parent_tokens else None
        return entry

    def remove(self, key: Key) -> list[Entry]:
        """Forget an entry and its descendants. Return them deepest first, the order to delete them in."""
        subtree, pending = [], [key]
        while pending:
            entry = self._entries.pop(pending.pop())
            subtree.append(entry)
            self.nbytes -= entry.nbytes
            self._unlink(entry.place)
            pending.extend(self._children.get(entry.place.key, ()))
        return subtree[::-1]

    def oldest(self) -> Entry | None:
        """Return the entry to evict, which has no children."""
        return next(iter(self._entries.values()), None)

    def path_bytes(self, place: Place) -> int:
        """Return the size of all its parents together."""
        nbytes = 0
        while place.parent_tokens and (entry := self._entries.get(place.parent)) is not None:
            nbytes += entry.nbytes
            place = entry.place
        return nbytes

    def match(self, chain: Chain, limit: int) -> int:
        """Return how many leading tokens are in the index as blocks, at most `limit`."""
        blocks, whole = 0, min(limit, chain.tokens) // BLOCK_TOKENS
        while blocks < whole and chain.key(blocks + 1) in self._entries:
            blocks += 1
        return blocks * BLOCK_TOKENS

    def deepest_snapshot(self, chain: Chain, limit: int, alone: bool) -> int:
        """Return the position of the deepest snapshot that can be used, at most `limit`; 0: there is none."""
        limit = min(limit, chain.tokens)
        reach = limit if alone else self.match(chain, limit)
        for blocks in range(reach // BLOCK_TOKENS, -1, -1):
            for position in sorted(self._snapshots.get(chain.key(blocks), ()), reverse=True):
                if position <= limit and chain.snapshot(position, alone).key in self._entries:
                    return position
        return 0

    def check_integrity(self) -> list[str]:
        """Return violated invariants in words, empty if none. O(files)."""
        complaints = (
            [] if self.nbytes == sum(e.nbytes for e in self._entries.values()) else ["nbytes is wrong"]
        )
        seen: set[Key] = set()
        for key, entry in self._entries.items():
            seen.add(key)
            if not self.has_parent(entry.place):
                complaints.append(f"{entry.place.file_name} has no parent")
            if entry.place.parent_tokens and entry.place.parent in seen:
                complaints.append(f"{entry.place.file_name} would outlive its parent")
        if {key for key in seen if self._entries[key].place.parent_tokens} != set().union(
            *self._children.values()
        ):
            complaints.append("children and entries are not the same")
        return complaints

    def _hold(self, entry: Entry) -> None:
        place = entry.place
        assert place.key not in self._entries, "a file is indexed once"
        self._entries[place.key] = entry
        if place.parent_tokens:
            self._children.setdefault(place.parent, set()).add(place.key)
        if place.kind != "b":
            self._snapshots.setdefault(place.parent, Counter())[place.position] += 1
        self.nbytes += entry.nbytes

    def _unlink(self, place: Place) -> None:
        if place.parent_tokens:
            siblings = self._children[place.parent]
            siblings.remove(place.key)
            if not siblings:
                del self._children[place.parent]
        if place.kind != "b":
            positions = self._snapshots[place.parent]
            positions[place.position] -= 1
            if not positions[place.position]:
                del positions[place.position]
            if not positions:
                del self._snapshots[place.parent]
