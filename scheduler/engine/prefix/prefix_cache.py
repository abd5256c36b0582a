"""The prefix cache: what it keeps and shares, and what it evicts when it needs room.

It owns the radix tree and every decision about it. It must not know MLX, models or requests: of a `Segment`
and a `Snapshot` it knows the size. The engine's one thread calls it between steps; all of it is host work.

Order of eviction (leased paths are never evicted): 1. leaves of a superseded turn, and leaves that no hit can
restore (no snapshot where the model needs one); 2. leaves, and snapshots inside a path, that are not
expected back soon; 3. what requests or operators hold, by the end of that time.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from heapq import nlargest
from typing import Generic, Literal, TypeAlias

import msgspec

from scheduler.engine.prefix.eviction_queue import EvictionQueue
from scheduler.engine.prefix.holds import NO_ROOM, Holds
from scheduler.engine.prefix.nodes import Known, Lease, Match, Node, SegmentT, SnapshotT
from scheduler.engine.prefix.radix_tree import RadixTree
from scheduler.engine.prefix.retention import BufferBound, Mark, Retention, SessionKey
from scheduler.engine.prefix.return_times import ReturnTimes
from scheduler.engine.prefix.session_turns import SessionTurns
from scheduler.shared.counters import CacheCounters
from scheduler.shared.reports import CacheReport, PrefixReport
from scheduler.shared.token_ids import KEY_BYTES

Reason: TypeAlias = Literal["budget", "superseded", "cleared"]
"""Why an entry was evicted."""

_MOST_RENEWED = 1024
"""Places renewed at a time, about 10 ms: after hours with room for all, all are due at once."""


class PrefixCache(Generic[SegmentT, SnapshotT]):
    """Holds at most the budget less the running bytes, and at most `buffers`, except for leased paths. Both
    bounds hold after every call.

    `known` is the same object in all calls for one sequence, whose tokens are compared with the tree's once.

        known = Known(prompt, salt)
        lease = cache.match_and_lease(known)  # the first `lease.length` tokens need not be computed
        cache.insert(known, cut)  # `cut(start, end)` copies what was computed for these tokens
        cache.release(lease)
    """

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
        cut. `needs_snapshot`: the model has layers that cannot be cut. Without `buffers`, their number is
        unbounded."""
        self.budget_bytes = budget_bytes
        self._running_bytes = 0
        self._token_bytes = token_bytes + KEY_BYTES
        self._needs_snapshot = needs_snapshot
        self._clock = clock
        self._retention = retention or Retention()
        self._buffers = buffers
        self._tree: RadixTree[SegmentT, SnapshotT] = RadixTree(self._inherit)
        self._marks: dict[Node[SegmentT, SnapshotT], Mark] = {}
        self._queue: EvictionQueue[Node[SegmentT, SnapshotT]] = EvictionQueue(self._is_valid)
        self._turns = SessionTurns(self._tree, self._marks, self._retention, self._file)
        self._times = ReturnTimes(self._retention.sessions)
        self._holds = Holds(self._tree, self._marks, self._file)
        self._now = clock()
        self._totals = CacheCounters()
        self.evicted_bytes = 0
        self.evicted_tokens: dict[str, int] = {"budget": 0, "superseded": 0, "cleared": 0}

    @property
    def nbytes(self) -> int:
        return self._tree.nbytes

    @property
    def room(self) -> int:
        return max(0, self.budget_bytes - self._running_bytes)

    def find(self, known: Known[SegmentT, SnapshotT]) -> Match[SegmentT, SnapshotT]:
        """Return the longest prefix that can be restored, at most one token short of the prompt: the last
        must be computed, or there are no logits to sample from. Changes and counts nothing."""
        match = self._tree.match(known, len(known.tokens) - 1)
        return match.restorable() if self._needs_snapshot else match

    def match_and_lease(
        self, known: Known[SegmentT, SnapshotT], system_tokens: int = 0, session: str | None = None
    ) -> Lease[SegmentT, SnapshotT]:
        """Return a lease on what `find` returns, which counts as a hit. End it with `release`."""
        found, tokens = self.find(known), len(known.tokens)
        if found.inside and found.length < tokens - 1:
            # The prompt diverges within this edge. Split it now: `insert` would have to, under this lease.
            upper = self._tree.boundary(found)
            assert upper is not None, "a match within an edge ends on it"
            found = replace(found, path=(*found.path[:-1], upper))
            known.node = upper
        continuation = self._retention.continues(found.length, tokens, system_tokens)
        now = self._now = self._clock()
        key = None if session is None else (known.salt, session)
        if key is not None:
            self._times.returned(key, now)
        if (whole := found.whole) is not None:
            self._times.hit(self._marks[whole], now)
        for node in found.path:
            mark = self._marks[node]
            mark.hit_by(key, now, continuation, self._retention.protecting_hits)
            if node.end == found.length and node.snapshot is not None:
                mark.snapshot_used = now
                mark.snapshot_hits += 1
        self._totals.query_tokens += tokens
        self._totals.hit_tokens += found.length
        lease = self._tree.lease(found)
        self._make_room(0)
        return lease

    def match(
        self, known: Known[SegmentT, SnapshotT], limit: int | None = None
    ) -> Match[SegmentT, SnapshotT]:
        """Return what is cached of a prefix, restorable or not. Changes and counts nothing."""
        return self._tree.match(known, limit)

    def pin(self, match: Match[SegmentT, SnapshotT]) -> Lease[SegmentT, SnapshotT]:
        """Return a lease on a fresh match: counts nothing, changes no recency."""
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
        known: Known[SegmentT, SnapshotT],
        cut: Callable[[int, int], SegmentT],
        session: str | None = None,
        system_tokens: int = 0,
        end: int | None = None,
    ) -> int:
        """Cache what was computed for the first `end` tokens. Return the bytes added.

        `cut(start, end)` is called at most once, for what is missing and fits: the shallow part if room is
        short. If it raises, nothing was added. What only an older turn of `session` used is evicted first.
        """
        end = len(known.tokens) if end is None else end
        if not end:
            return 0
        match = self._tree.match(known, end)
        missing = end - match.length
        node = self._tree.boundary(match) if missing else match.path[-1]
        key = None if session is None else (known.salt, session)
        if key is not None:
            self._turns.supersede(key, node, end, system_tokens)
        added = 0
        with nullcontext() if node is None else self._pinned(node):
            fitting = (
                max(0, self._make_room(missing * self._token_bytes, min(missing, 1))) // self._token_bytes
            )
            if missing and fitting and not self._too_many(1):
                node = self._tree.insert(known, cut, min(end, match.length + fitting))
                self._marks[node] = Mark(self._now)
                self._extend(node)
                self._totals.stored_tokens += len(node.tokens)
                added = node.nbytes
        if node is not None:
            self._pass(node, key)
            if key is not None:
                self._turns.remember(key, node)
        self._make_room(0)
        return added if node in self._marks else 0

    def attach(self, known: Known[SegmentT, SnapshotT], snapshot: SnapshotT, end: int | None = None) -> bool:
        """Cache the state right after the first `end` tokens. Return False if it is not kept: not needed, the
        tokens are not cached, one is there already, there is no room, or its path has better ones."""
        end = len(known.tokens) if end is None else end
        match = self._tree.match(known, end)
        kept = not match.inside and match.path and match.path[-1].snapshot is not None
        if not self._needs_snapshot or not match.path or match.length < end or kept:
            return False
        with self._pinned(match.path[-1]):
            pieces = int(match.inside), 1  # The edge is split there.
            if self._make_room(snapshot.nbytes, *pieces) < snapshot.nbytes or self._too_many(*pieces):
                return False
            node = self._tree.attach(known, snapshot, end)
            assert node is not None, "a pinned path was lost"
        mark = self._marks[node]
        mark.snapshot_used = mark.last_used  # No younger than its own turn's leaf: it is evicted before it.
        self._file(node)
        self._thin(node)
        self._make_room(0)
        return node.snapshot is not None

    def hold(self, tokens: array[int], salt: str, seconds: float) -> str:
        """Keep what is cached of `tokens` for that long from now on, as far as the budget allows. Return why
        it is not kept, or an empty string if it is."""
        match = self._tree.match(Known(tokens, salt))
        end = self._tree.boundary(match.restorable() if self._needs_snapshot else match)
        self._renew()
        most = int(self._retention.held_share * self.room)
        refusal = self._holds.hold(end, self._now + seconds, most)
        self._make_room(0)  # A split may have cost some.
        return refusal if end is None or end in self._marks else NO_ROOM

    def ended(self, salt: str, session: str, kind: str) -> None:
        """Note that a turn of a session has ended, and that the session waits for `kind`: the tools that the
        turn called, or how it ended."""
        self._now, key = self._clock(), (salt, session)
        self._times.ended(key, kind, self._now)
        for node in self._turns.ends.get(key, ()):
            self._file(node)

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
        self._renew()
        while before - self.nbytes < need and (victim := self._victim()) is not None:
            self._evict(victim, "budget")
        return before - self.nbytes

    def clear(self) -> int:
        """Evict everything that is not in use. Return the bytes freed."""
        before = self.evicted_bytes
        while (victim := self._victim()) is not None:
            self._evict(victim, "cleared")
        return self.evicted_bytes - before

    def counters(self) -> CacheCounters:
        return msgspec.structs.replace(
            self._totals,
            evicted_budget_tokens=self.evicted_tokens["budget"],
            evicted_superseded_tokens=self.evicted_tokens["superseded"],
            evicted_cleared_tokens=self.evicted_tokens["cleared"],
            kept_tokens=self._tree.tokens,
            kept_bytes=self.nbytes,
        )

    def statistics(self, top: int = 10, head_tokens: int = 0) -> CacheReport:
        """Return what operators see. `top` shared prefixes take a walk of all nodes: not for every step."""
        tree, totals = self._tree, self._totals
        return CacheReport(
            budget_bytes=self.budget_bytes,
            nodes=tree.nodes,
            tokens=tree.tokens,
            snapshots=tree.snapshots,
            segment_bytes=tree.segment_bytes,
            snapshot_bytes=tree.snapshot_bytes,
            key_bytes=KEY_BYTES * tree.tokens,
            replaced_bytes=tree.replaced_bytes,
            leases=len(tree.leases),
            query_tokens=totals.query_tokens,
            hit_tokens=totals.hit_tokens,
            stored_tokens=totals.stored_tokens,
            evicted_tokens=dict(self.evicted_tokens),
            shared_prefixes=_shared_prefixes(tree, self._marks, top, head_tokens),
            held_bytes=self._holds.nbytes,
            refused_holds=self._holds.refused,
        )

    def _extend(self, leaf: Node[SegmentT, SnapshotT]) -> None:
        """Mark the parent of a new leaf as extended, and as shared if others part there. Mark the leaf if it
        continues a conversation that came back before."""
        if (parent := leaf.parent) is not None and (mark := self._marks.get(parent)) is not None:
            mark.extended = True
            mark.shared |= mark.owner is None and len(parent.children) > 1
            self._marks[leaf].continued = mark.protected and not mark.shared

    def _pass(self, end: Node[SegmentT, SnapshotT], key: SessionKey | None) -> None:
        now = self._now = self._clock()
        for node in (end, *self._tree.parents(end)):
            self._marks[node].passed_by(key, now, forks=len(node.children) > 1)
            self._file(node)

    def _inherit(self, upper: Node[SegmentT, SnapshotT], lower: Node[SegmentT, SnapshotT]) -> None:
        """Let both nodes of an edge that the tree has split inherit its mark."""
        mark = self._marks[lower]
        self._marks[upper] = above = replace(mark, turns=set(), snapshot_used=0.0, snapshot_hits=0, ticket=0)
        above.held_until, above.held_bytes = 0.0, 0
        self._holds.split(above, upper.nbytes, mark, lower.nbytes)
        self._file(upper)
        self._file(lower)  # A lease on it may have moved up.

    def _thin(self, node: Node[SegmentT, SnapshotT]) -> None:
        """Drop snapshots until no path through `node` has too many."""
        while len(path := self._tree.fullest_path(node)) > self._retention.snapshots_per_path:
            self._drop_snapshot(_least_needed(path, self._marks, self._retention.protecting_hits))

    def _drop_snapshot(self, node: Node[SegmentT, SnapshotT]) -> None:
        self.evicted_bytes += self._tree.detach(node)
        self._file(node)

    def _make_room(self, need: int, segments: int = 0, snapshots: int = 0) -> int:
        """Evict until `need` more bytes, in these numbers of pieces, fit or nothing is evictable. Return the
        room in bytes that there is then."""

        def short() -> bool:
            return self.nbytes + need > self.room or self._too_many(segments, snapshots)

        if short():
            self._renew()
        while short() and (victim := self._victim()) is not None:
            self._evict(victim, "budget")
        return self.room - self.nbytes

    def _too_many(self, segments: int = 0, snapshots: int = 0) -> bool:
        """Return whether these and what is held are more buffers than may be held."""
        tree, bound = self._tree, self._buffers
        return bound is not None and bound.exceeded(tree.nodes + segments, tree.snapshots + snapshots)

    def _renew(self) -> None:
        """Renew the order of eviction: only when something must be evicted."""
        self._now = self._clock()
        self._holds.expire(self._now)
        for _ in range(_MOST_RENEWED):
            if (node := self._queue.due(self._now)) is None:
                break
            self._file(node)

    def _victim(self) -> Node[SegmentT, SnapshotT] | None:
        while (node := self._queue.first()) is not None and node.pins:
            self._queue.drop_first()  # A pinned node is queued again on release.
        return node

    def _evict(self, node: Node[SegmentT, SnapshotT], reason: Reason) -> None:
        """Evict a leaf with all that it holds, or the snapshot in the middle of a path."""
        if node.children:
            self._drop_snapshot(node)
            return
        mark, parent = self._marks[node], node.parent
        self._times.evicted(mark, self._now)
        for key in tuple(mark.turns):
            self._turns.forget(key, node)
        self._holds.end(mark)
        reason = "superseded" if mark.superseded and reason == "budget" else reason
        self.evicted_tokens[reason] += len(node.tokens)
        self.evicted_bytes += node.nbytes
        del self._marks[node]
        self._tree.remove(node)
        if parent in self._marks:
            self._file(parent)

    def _file(self, node: Node[SegmentT, SnapshotT]) -> None:
        """Queue a node at its place; called after every change of it or of its mark."""
        mark, leaf, now = self._marks[node], not node.children, self._now
        if not leaf and node.snapshot is None:
            mark.ticket = 0
            return
        useless = leaf and (mark.superseded or (self._needs_snapshot and node.snapshot is None))
        used = mark.last_used if leaf else mark.snapshot_used
        hits = mark.hits if leaf else mark.snapshot_hits or int(len(node.children) > 1)
        worth, until = self._times.worth(mark, used, hits, now)
        rank = 0 if useless else 1
        if mark.held_until > now:
            rank, worth, until = 2, mark.held_until, mark.held_until
        mark.ticket = self._queue.ticket()
        self._queue.put(node, mark.ticket, (rank, worth, used, leaf), until)
        self._queue.compact(64 + 4 * len(self._marks))

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


def _least_needed(
    path: Sequence[Node[SegmentT, SnapshotT]],
    marks: Mapping[Node[SegmentT, SnapshotT], Mark],
    protecting_hits: int,
) -> Node[SegmentT, SnapshotT]:
    """Return the least needed of a path's nodes with snapshots, shallow first: what was not hit again before
    what was, by the smallest gap that it leaves; the deepest, which the next turn needs, last."""

    def is_reused(node: Node[SegmentT, SnapshotT]) -> bool:
        return len(node.children) > 1 or marks[node].snapshot_hits >= protecting_hits

    ends = [0, *(held.end for held in path)]
    gaps = {held: ends[i + 2] - ends[i] for i, held in enumerate(path[:-1])}
    free = [held for held in path if not held.pins]
    plain = [held for held in free if not is_reused(held)]
    return min(plain or free, key=lambda held: gaps.get(held, held.end))


def _shared_prefixes(
    tree: RadixTree[SegmentT, SnapshotT],
    marks: Mapping[Node[SegmentT, SnapshotT], Mark],
    top: int,
    head_tokens: int,
) -> list[PrefixReport]:
    """Return the prefixes that branch or were hit, those with the most hits first. O(nodes) unless `top` is
    0."""
    shared = [
        (marks[node].hits, node.end, leaves, node)
        for node, leaves in (tree.leaves_below().items() if top else ())
        if len(node.children) > 1 or marks[node].hits
    ]
    best = nlargest(top, shared, key=lambda prefix: prefix[:2])
    return [
        PrefixReport(tokens, leaves, hits, list(tree.head(node, head_tokens)))
        for hits, tokens, leaves, node in best
    ]
