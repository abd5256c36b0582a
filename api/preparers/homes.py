"""Which process has read a conversation's earlier turns, and keeps what it has made of them.

A file of its own because it is pure, and `preparers.py` is I/O.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Collection
from typing import TypeAlias
from zlib import crc32

_SHORTEST_BYTES = 1 << 12
_MOST_HEADS = 1 << 14
"""Of the conversations without a name: some thousands, in 2 MB."""


Heads: TypeAlias = tuple[tuple[int, int], ...]


def heads_of(text: bytes) -> Heads:
    """Return powers of two, ascending, and a sum over as many first bytes of the text. 0.1 ms for 400 kB."""
    found, crc, end, view = list[tuple[int, int]](), 0, 0, memoryview(text)
    while (length := max(_SHORTEST_BYTES, 2 * end)) <= len(text):
        crc, end = crc32(view[end:length], crc), length
        found.append((length, crc))
    return tuple(found)


class Homes:
    """Processes are numbers, from 0. It knows nothing else of them."""

    def __init__(self) -> None:
        self._heads: OrderedDict[tuple[str, int, int], int] = OrderedDict()

    def of_session(self, tenant: str, session: str, running: Collection[int]) -> int:
        """Return the process of a named session: the same one as long as it runs, whatever becomes of the
        others (rendezvous hashing)."""
        name = f"{tenant}\0{session}".encode()
        return max(running, key=lambda number: crc32(name, number))

    def of_text(self, tenant: str, heads: Heads, running: Collection[int]) -> int | None:
        """Return the process that has read a body which began as this one does, for a quarter of it at least:
        a turn's body begins with the one before it. None: none has, or it does not run."""
        for head in reversed(heads[-2:]):
            if (found := self._heads.get((tenant, *head))) in running:
                return found
        return None

    def note(self, tenant: str, heads: Heads, number: int) -> None:
        """A process is about to read a body."""
        for head in heads[-2:]:
            self._heads[tenant, *head] = number
            self._heads.move_to_end((tenant, *head))
        while len(self._heads) > _MOST_HEADS:
            self._heads.popitem(last=False)
