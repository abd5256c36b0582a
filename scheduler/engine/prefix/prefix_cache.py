"""The prefix cache: what it keeps and shares, and what it evicts when it needs room.

It owns the radix tree and every decision about it. It must not know MLX, models or requests: of a `Segment`
and a `Snapshot` it knows the size. The engine's one thread calls it between steps; all of it is host work.

Order of eviction (leased paths are never evicted): 1. leaves of a superseded turn, and leaves that no hit can
restore (no snapshot where the model needs one); 2. then the least recently used: leaves, and snapshots inside
a path. An entry that was used again (a continuation, two hits, several branches) counts as used
`protected_seconds` later, as in a segmented LRU.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from heapq import heapify, heappop, heappush, nlargest
from typing import Generic, TypeAlias

from scheduler.engine.prefix.cache_statistics import CacheStatistics, Reason, SharedPrefix
from scheduler.engine.prefix.nodes import Lease, Match, Node, SegmentT, SnapshotT
from scheduler.engine.prefix.radix_tree import RadixTree
from scheduler.engine.prefix.retention import BufferBound, Mark, Retention, SessionKey
from scheduler.token_ids import KEY_BYTES

Tokens: TypeAlias = Sequence[int]


class PrefixCache(Generic[SegmentT, SnapshotT]):
    """Holds at most budget - running bytes, and `buffers`, except for leased paths. Exact after every
    call."""

    def __init__(
        self,
        budget_bytes: int,
        token_bytes: int,
        needs_snapshot: bool,
        clock: Callable[[], float],
        retention: Retention | None = None,
        buffers: BufferBound | None = None,
    ) -> None:
        """`token_bytes`: a Segment's bytes per token, to make room before it is cut; 0 if no layer can be
        cut. `needs_snapshot`: the model has layers that cannot be cut. `buffers` None: any number."""
        self.budget_bytes = budget_bytes
        self._running_bytes = 0
        self._token_bytes = token_bytes + KEY_BYTES
        self._needs_snapshot = needs_snapshot
        self._clock = clock
        self._retention = retention or Retention()
        self._buffers = buffers
        self._tree: RadixTree[SegmentT, SnapshotT] = RadixTree(self._inherit)
        self._marks: dict[Node[SegmentT, SnapshotT], Mark] = {}
        # Lazy deletion: (rank, age, is a leaf, ticket, node) is valid while the ticket is the node's own.
        self._queue: list[tuple[int, float, bool, int, Node[SegmentT, SnapshotT]]] = []
        self._tickets = 0
        self._sessions: OrderedDict[SessionKey, list[Node[SegmentT, SnapshotT]]] = OrderedDict()
        self.query_tokens = self.hit_tokens = self.stored_tokens = self.evicted_bytes = 0
        self.evicted_tokens: dict[Reason, int] = {"budget": 0, "superseded": 0, "cleared": 0}

    @property
    def nbytes(self) -> int:
        return self._tree.nbytes

    @property
    def held_tokens(self) -> int:
        return self._tree.tokens

    @property
    def room(self) -> int:
        return max(0, self.budget_bytes - self._running_bytes)

    def match_length(self, tokens: Tokens, salt: str) -> int:
        """Return how many tokens `match_and_lease` would find. Changes and counts nothing: for planning."""
        return self._find(tokens, salt).length

    def match_and_lease(
        self, tokens: Tokens, salt: str, system_tokens: int = 0
    ) -> Lease[SegmentT, SnapshotT]:
        """Return the longest prefix that can be restored, at most one token short of the prompt: the last
        must be computed, or there are no logits to sample from. End the lease with `release`."""
        found = self._find(tokens, salt)
        if found.inside and found.length < len(tokens) - 1:
            # The prompt diverges within this edge. Split it now: `insert` would have to, under this lease.
            self._tree.boundary(found)
            found = self._find(found.tokens, salt)
        continuation = self._retention.continues(found.length, len(tokens), system_tokens)
        now = self._clock()
        for node in found.path:
            mark = self._marks[node]
            mark.last_used, mark.superseded = now, False
            mark.hits += 1
            mark.protected |= continuation or mark.hits >= self._retention.protecting_hits
            if node.end == found.length and node.snapshot is not None:
                mark.snapshot_used = now
                mark.snapshot_hits += 1
            self._file(node)
        self.query_tokens += len(tokens)
        self.hit_tokens += found.length
        lease = self._tree.lease(found)
        self._make_room(0)
        return lease

    def match(
        self,
        tokens: Tokens,
        salt: str,
        limit: int | None = None,
        known: Node[SegmentT, SnapshotT] | None = None,
    ) -> Match[SegmentT, SnapshotT]:
        """What is cached of a prefix. Changes and counts nothing; `known` as in `RadixTree.match`."""
        return self._tree.match(tokens, salt, limit, known)

    def pin(self, match: Match[SegmentT, SnapshotT]) -> Lease[SegmentT, SnapshotT]:
        """A lease on a fresh match: counts nothing, changes no recency."""
        return self._tree.lease(match)

    def pinned_bytes(self) -> int:
        """Return the bytes that leases keep from being evicted. O(leases * depth)."""
        nodes: set[Node[SegmentT, SnapshotT]] = set()
        for lease in self._tree.leases:
            if lease.node is not None and lease.node not in nodes:
                nodes.update((lease.node, *self._tree.parents(lease.node)))
        return self._tree.replaced_bytes + sum(node.nbytes for node in nodes)

    def release(self, lease: Lease[SegmentT, SnapshotT]) -> None:
        """End a lease, and evict what exceeded the budget because of it."""
        node = lease.node
        self._tree.release(lease)
        if node is not None:
            self._file(node)
        self._make_room(0)

    def insert(
        self,
        tokens: Tokens,
        salt: str,
        cut: Callable[[int, int], SegmentT],
        session: str | None = None,
        system_tokens: int = 0,
    ) -> int:
        """Cache what was computed for `tokens`. Return the bytes added.

        `cut(start, end)` is called at most once, for what is missing and fits: the shallow part if room is
        short. If it raises, nothing was added. What only an older turn of `session` used is evicted first.
        """
        if not tokens:
            return 0
        match = self._tree.match(tokens, salt)
        missing = len(tokens) - match.length
        end = self._tree.boundary(match) if missing else match.path[-1]
        if session is not None:
            self._supersede((salt, session), end, len(tokens), system_tokens)
        added = 0
        with nullcontext() if end is None else self._pinned(end):
            fitting = (
                max(0, self._make_room(missing * self._token_bytes, min(missing, 1))) // self._token_bytes
            )
            if missing and fitting and not self._too_many(1):
                end = self._tree.insert(match.tokens[: match.length + fitting], salt, cut)
                self._marks[end] = Mark(0.0)
                self.stored_tokens += len(end.tokens)
                added = end.nbytes
        if end is not None:
            self._pass(end)
            if session is not None:
                self._remember((salt, session), end)
        self._make_room(0)
        return added if end in self._marks else 0

    def attach(self, tokens: Tokens, salt: str, snapshot: SnapshotT) -> bool:
        """Cache the state right after `tokens`. Return False if it is not kept: not needed, the tokens are
        not cached, one is there already, there is no room, or its path has better ones."""
        match = self._tree.match(tokens, salt)
        known = not match.inside and match.path and match.path[-1].snapshot is not None
        if not self._needs_snapshot or not match.path or match.length < len(tokens) or known:
            return False
        with self._pinned(match.path[-1]):
            pieces = int(match.inside), 1  # The edge is split there.
            if self._make_room(snapshot.nbytes, *pieces) < snapshot.nbytes or self._too_many(*pieces):
                return False
            node = self._tree.attach(match.tokens, salt, snapshot)
            assert node is not None, "a pinned path was lost"
        mark = self._marks[node]
        mark.snapshot_used = mark.last_used  # No younger than the leaf of its own turn, which it goes before.
        self._file(node)
        self._thin(node)
        self._make_room(0)
        return node.snapshot is not None

    def set_budget(self, budget_bytes: int) -> None:
        """Hold no more than this from now on, as far as leases allow."""
        self.budget_bytes = budget_bytes
        self._make_room(0)

    def set_running_bytes(self, running_bytes: int) -> None:
        """Set the part of the budget that running requests use from now on."""
        self._running_bytes = running_bytes
        self._make_room(0)

    def evict(self, need: int) -> int:
        """Evict until this many bytes are freed, or nothing is left that is not in use. Return the bytes
        freed."""
        before = self.nbytes
        while before - self.nbytes < need and (victim := self._victim()) is not None:
            self._evict(victim, "budget")
        return before - self.nbytes

    def clear(self) -> int:
        """Evict everything that is not in use. Return the bytes freed."""
        before = self.evicted_bytes
        while (victim := self._victim()) is not None:
            self._evict(victim, "cleared")
        return self.evicted_bytes - before

    def statistics(self, top: int = 10, head_tokens: int = 0) -> CacheStatistics:
        """For operators. `top` shared prefixes take a walk of all nodes: not for every step."""
        return CacheStatistics(
            size=self._tree.size(),
            leases=len(self._tree.leases),
            query_tokens=self.query_tokens,
            hit_tokens=self.hit_tokens,
            stored_tokens=self.stored_tokens,
            evicted_tokens=dict(self.evicted_tokens),
            evicted_bytes=self.evicted_bytes,
            top_prefixes=tuple(self._top_prefixes(top, head_tokens)) if top else (),
        )

    def _top_prefixes(self, top: int, head_tokens: int) -> Iterator[SharedPrefix]:
        shared = [
            (self._marks[node].hits, node.end, leaves, node)
            for node, leaves in self._tree.leaves_below().items()
            if len(node.children) > 1 or self._marks[node].hits
        ]
        for hits, tokens, leaves, node in nlargest(top, shared, key=lambda prefix: prefix[:2]):
            yield SharedPrefix(tokens, leaves, hits, self._tree.head(node, head_tokens))

    def check_integrity(self) -> list[str]:
        """Return violated invariants in words, empty if none: an alarm, never a crash. O(nodes)."""
        complaints, nodes = self._tree.check_integrity(), set(self._tree.walk())
        if nodes != self._marks.keys():
            return [*complaints, "nodes and marks are not the same"]
        queued = {node for *entry, ticket, node in self._queue if self._is_valid(ticket, node)}
        for node in nodes:
            evictable = not node.pins and (not node.children or node.snapshot is not None)
            if evictable and node not in queued:
                complaints.append(f"node [{node.start}, {node.end}) would never be evicted")
        turns = {(key, node) for key, ends in self._sessions.items() for node in ends}
        if turns != {(key, node) for node in nodes for key in self._marks[node].turns}:
            complaints.append("sessions and turns are not the same")
        if self.nbytes > self.room and self._victim() is not None:
            complaints.append(f"{self.nbytes} bytes exceed the room of {self.room}, and some are evictable")
        if self._too_many() and self._victim() is not None:
            complaints.append(f"{self._tree.nodes} nodes are too many buffers, and some are evictable")
        return complaints

    def _find(self, tokens: Tokens, salt: str) -> Match[SegmentT, SnapshotT]:
        match = self._tree.match(tokens, salt, limit=len(tokens) - 1)
        return match.restorable() if self._needs_snapshot else match

    def _pass(self, end: Node[SegmentT, SnapshotT]) -> None:
        """An insertion or a hit passed along this path."""
        now = self._clock()
        for node in (end, *self._tree.parents(end)):
            mark = self._marks[node]
            mark.last_used, mark.superseded = now, False
            mark.protected |= len(node.children) > 1
            self._file(node)

    def _inherit(self, upper: Node[SegmentT, SnapshotT], lower: Node[SegmentT, SnapshotT]) -> None:
        """The tree split an edge: both nodes inherit its mark."""
        mark = self._marks[lower]
        self._marks[upper] = Mark(mark.last_used, mark.hits, mark.protected, mark.superseded)
        self._file(upper)
        self._file(lower)  # A lease on it may have moved up.

    def _supersede(
        self, key: SessionKey, end: Node[SegmentT, SnapshotT] | None, length: int, system_tokens: int
    ) -> None:
        """A turn of `length` tokens, cached up to `end`, supersedes the session's older turns. An older turn
        that is longer, or shares only the system prompt, is a branch: both stay."""
        path = set() if end is None else {end, *self._tree.parents(end)}
        for old in tuple(self._sessions.get(key, ())):
            above = (old, *self._tree.parents(old))
            common = next((node.end for node in above if node in path), 0)
            good = common > system_tokens and self._retention.continues(common, length, system_tokens)
            if old not in path and not (good and length >= old.end):
                continue
            self._forget(key, old)
            for node in above:  # Not what others use, nor what is above that.
                used = node in path or node.pins or self._marks[node].turns
                if used or not all(self._marks[child].superseded for child in node.children.values()):
                    break
                self._marks[node].superseded = True
                self._file(node)

    def _remember(self, key: SessionKey, end: Node[SegmentT, SnapshotT]) -> None:
        turns = self._sessions.setdefault(key, [])
        self._sessions.move_to_end(key)
        if end not in turns:
            turns.append(end)
            self._marks[end].turns.add(key)
        if len(turns) > self._retention.branches_per_session:
            self._forget(key, turns[0])
        if len(self._sessions) > self._retention.sessions:
            oldest, ends = next(iter(self._sessions.items()))
            for node in tuple(ends):
                self._forget(oldest, node)

    def _forget(self, key: SessionKey, node: Node[SegmentT, SnapshotT]) -> None:
        self._marks[node].turns.remove(key)
        self._sessions[key].remove(node)
        if not self._sessions[key]:
            del self._sessions[key]

    def _thin(self, node: Node[SegmentT, SnapshotT]) -> None:
        """Drop snapshots until no path through `node` has too many: first those that were not hit again, by
        the smallest gap that they leave; the deepest, which the next turn needs, last."""
        while len(path := self._tree.fullest_path(node)) > self._retention.snapshots_per_path:
            ends = [0, *(held.end for held in path)]
            gaps = {held: ends[i + 2] - ends[i] for i, held in enumerate(path[:-1])}
            free = [held for held in path if not held.pins]
            plain = [held for held in free if not self._is_reused(held)]
            self._drop_snapshot(min(plain or free, key=lambda held: gaps.get(held, held.end)))

    def _is_reused(self, node: Node[SegmentT, SnapshotT]) -> bool:
        return len(node.children) > 1 or self._marks[node].snapshot_hits >= self._retention.protecting_hits

    def _drop_snapshot(self, node: Node[SegmentT, SnapshotT]) -> None:
        self.evicted_bytes += self._tree.detach(node)
        self._file(node)

    def _make_room(self, need: int, segments: int = 0, snapshots: int = 0) -> int:
        """Evict until `need` more bytes, in these numbers of pieces, fit or nothing is evictable. Return the
        room in bytes that there is then."""
        while (self.nbytes + need > self.room or self._too_many(segments, snapshots)) and (
            victim := self._victim()
        ) is not None:
            self._evict(victim, "budget")
        return self.room - self.nbytes

    def _too_many(self, segments: int = 0, snapshots: int = 0) -> bool:
        """Whether these and what is held are more buffers than may be held."""
        tree, bound = self._tree, self._buffers
        return bound is not None and bound.exceeded(tree.nodes + segments, tree.snapshots + snapshots)

    def _victim(self) -> Node[SegmentT, SnapshotT] | None:
        while self._queue:
            *_, ticket, node = self._queue[0]
            if self._is_valid(ticket, node) and not node.pins:
                return node
            heappop(self._queue)  # A pinned node is queued again on release.
        return None

    def _evict(self, node: Node[SegmentT, SnapshotT], reason: Reason) -> None:
        """Evict a leaf with all that it holds, or the snapshot in the middle of a path."""
        if node.children:
            self._drop_snapshot(node)
            return
        mark, parent = self._marks[node], node.parent
        for key in tuple(mark.turns):
            self._forget(key, node)
        reason = "superseded" if mark.superseded and reason == "budget" else reason
        self.evicted_tokens[reason] += len(node.tokens)
        self.evicted_bytes += node.nbytes
        del self._marks[node]
        self._tree.remove(node)
        if parent in self._marks:
            self._file(parent)

    def _file(self, node: Node[SegmentT, SnapshotT]) -> None:
        """Queue a node at its place; called after every change of it or of its mark."""
        mark, leaf = self._marks[node], not node.children
        if not leaf and node.snapshot is None:
            mark.ticket = 0
            return
        hopeless = leaf and (mark.superseded or (self._needs_snapshot and node.snapshot is None))
        age = mark.last_used if leaf else mark.snapshot_used
        if mark.protected if leaf else self._is_reused(node):
            age += self._retention.protected_seconds
        self._tickets += 1
        mark.ticket = self._tickets
        heappush(self._queue, (0 if hopeless else 1, age, leaf, mark.ticket, node))
        if len(self._queue) > 64 + 4 * len(self._marks):  # Mostly invalid: amortised by the pushes.
            self._queue = [entry for entry in self._queue if self._is_valid(*entry[3:])]
            heapify(self._queue)

    def _is_valid(self, ticket: int, node: Node[SegmentT, SnapshotT]) -> bool:
        return (mark := self._marks.get(node)) is not None and mark.ticket == ticket

    @contextmanager
    def _pinned(self, node: Node[SegmentT, SnapshotT]) -> Iterator[None]:
        """Keep this path from eviction while making room for an addition to it."""
        node.pins += 1
        try:
            yield
        finally:
            node.pins -= 1
            self._file(node)
