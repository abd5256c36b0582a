"""Which files the disk tier has, which of them stand on which, and which goes first.

Host memory only: no file is touched here. `disk_store.py` alone calls it, under its lock. Two rules hold
after every call: whatever an entry stands on is there too; and in the order of use an entry comes before
what it stands on, so that the one used longest ago is always one that nothing stands on.
"""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Iterable
from dataclasses import dataclass

from scheduler.engine.disk.block_chain import BLOCK_TOKENS, Chain, Key, Place


@dataclass(frozen=True, slots=True)
class FoundFile:
    """What a scan sees of a file without opening it."""

    place: Place
    nbytes: int
    used: float
    """Seconds since the epoch."""


@dataclass(slots=True, eq=False)
class Entry:
    """A file that is there."""

    place: Place
    nbytes: int
    stamped: float = float("-inf")  # When its use was last noted in the file system; the store's clock.


class DiskIndex:
    """`nbytes` is the sum of the entries' sizes after every call."""

    def __init__(self) -> None:
        self._entries: OrderedDict[Key, Entry] = OrderedDict()  # Used longest ago first.
        self._children: dict[Key, set[Key]] = {}  # What stands on it.
        self._snapshots: dict[Key, Counter[int]] = {}  # By parent: the positions of those that hang on it.
        self.nbytes = 0

    def __len__(self) -> int:
        return len(self._entries)

    def get(self, key: Key) -> Entry | None:
        return self._entries.get(key)

    def is_grounded(self, place: Place) -> bool:
        """Whether what it stands on is there. A block can only stand on one that ends where it begins, so
        that no set of names, however they came about, is a circle."""
        if place.stands_on == 0:
            return True
        parent = self._entries.get(place.parent)
        return parent is not None and parent.place.kind == "b" and parent.place.position == place.stands_on

    def add(self, entry: Entry) -> None:
        """The newest. It is grounded and was not there."""
        self._hold(entry)
        self.touch(entry.place.key)

    def restore(self, found: Iterable[FoundFile]) -> list[FoundFile]:
        """Take over what a scan found; returns those that stand on nothing, or are there twice."""
        used: dict[Key, float] = {}
        orphans: list[FoundFile] = []
        for file in sorted(found, key=lambda file: file.place.stands_on):
            if self.is_grounded(file.place) and file.place.key not in self._entries:
                self._hold(Entry(file.place, file.nbytes))
                used[file.place.key] = file.used
            else:
                orphans.append(file)
        # Only the end of a path is stamped when the path is used (see `touch`): the rest has it from there.
        for key in reversed(tuple(used)):
            place = self._entries[key].place
            if place.stands_on:
                used[place.parent] = max(used[place.parent], used[key])
        for key in sorted(used, key=lambda key: (used[key], -self._entries[key].place.stands_on)):
            self._entries.move_to_end(key)
        return orphans

    def touch(self, key: Key) -> Entry | None:
        """Used now, it and the path below it: O(path). None where it is not there."""
        entry = above = self._entries.get(key)
        while above is not None:
            self._entries.move_to_end(above.place.key)
            above = self._entries.get(above.place.parent) if above.place.stands_on else None
        return entry

    def remove(self, key: Key) -> list[Entry]:
        """Forget an entry and all that stands on it; they come back deepest first, to be deleted so."""
        subtree, pending = [], [key]
        while pending:
            entry = self._entries.pop(pending.pop())
            subtree.append(entry)
            self.nbytes -= entry.nbytes
            self._unlink(entry.place)
            pending.extend(self._children.get(entry.place.key, ()))
        return subtree[::-1]

    def oldest(self) -> Entry | None:
        """The one to evict: nothing stands on it."""
        return next(iter(self._entries.values()), None)

    def path_bytes(self, place: Place) -> int:
        """What all that it stands on weighs."""
        weight = 0
        while place.stands_on and (entry := self._entries.get(place.parent)) is not None:
            weight += entry.nbytes
            place = entry.place
        return weight

    def match(self, chain: Chain, limit: int) -> int:
        """The tokens of the leading blocks that are there, at most `limit`."""
        blocks, whole = 0, min(limit, chain.tokens) // BLOCK_TOKENS
        while blocks < whole and chain.key(blocks + 1) in self._entries:
            blocks += 1
        return blocks * BLOCK_TOKENS

    def deepest_snapshot(self, chain: Chain, limit: int, alone: bool) -> int:
        """The position of the deepest snapshot that can be used, at most `limit`; 0: there is none."""
        limit = min(limit, chain.tokens)
        reach = limit if alone else self.match(chain, limit)
        for blocks in range(reach // BLOCK_TOKENS, -1, -1):
            for position in sorted(self._snapshots.get(chain.key(blocks), ()), reverse=True):
                if position <= limit and chain.snapshot(position, alone).key in self._entries:
                    return position
        return 0

    def check_integrity(self) -> list[str]:
        """Complaints in words, best none. O(everything)."""
        complaints = (
            [] if self.nbytes == sum(e.nbytes for e in self._entries.values()) else ["nbytes is wrong"]
        )
        seen: set[Key] = set()
        for key, entry in self._entries.items():
            seen.add(key)
            if not self.is_grounded(entry.place):
                complaints.append(f"{entry.place.file_name} stands on nothing")
            if entry.place.stands_on and entry.place.parent in seen:
                complaints.append(f"{entry.place.file_name} would outlive what it stands on")
        if {key for key in seen if self._entries[key].place.stands_on} != set().union(
            *self._children.values()
        ):
            complaints.append("children and entries are not the same")
        return complaints

    def _hold(self, entry: Entry) -> None:
        place = entry.place
        assert place.key not in self._entries, "a file is indexed once"
        self._entries[place.key] = entry
        if place.stands_on:
            self._children.setdefault(place.parent, set()).add(place.key)
        if place.kind != "b":
            self._snapshots.setdefault(place.parent, Counter())[place.position] += 1
        self.nbytes += entry.nbytes

    def _unlink(self, place: Place) -> None:
        if place.stands_on:
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
