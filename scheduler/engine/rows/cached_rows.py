"""What rows take from the prefix cache when they join, share while they run, and leave there.

One life of a row: `start` (look up, lease), `keep` whenever something is whole (a stop, the end of its
prompt, a follower that waits, its own end), `end` (release). The order matters: the lease pins what the row
began with, so that what it adds always has a path to stand on, and what it shares in place stays.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import mlx.core as mx

from scheduler.engine.prefix.prefix_cache import PrefixCache
from scheduler.engine.prefix.radix_tree import Lease
from scheduler.engine.rows.cache_layout import CacheLayout, RowState
from scheduler.engine.rows.kv_segment import KvSegment
from scheduler.engine.rows.row_sharing import RowPath, runs_in_place
from scheduler.link.messages import Submit

_CLEAR_AT_BYTES = 256 << 20
"""MLX keeps freed buffers for itself; after evicting as much, the device should have them back."""


@dataclass(slots=True)
class CachedRow:
    """A row's ties to the prefix cache."""

    submit: Submit
    tokens: array[int]
    """Its prompt."""
    cached_tokens: int
    """What it had not to compute."""
    done_tokens: int
    """Prompt tokens in its layers."""
    layers: list[Any]
    """What BatchGenerator starts the row from. It keeps this very list until the row joins a batch."""
    lease: Lease[KvSegment, RowState] | None
    shared_tokens: int = 0
    """What of the lease it attends to in place."""


class CachedRows:
    """`prefixes` None: nothing is kept, and rows begin empty. `in_place`: the model's attention was taken
    over, so rows may share."""

    def __init__(
        self,
        layout: CacheLayout,
        prefixes: PrefixCache[KvSegment, RowState] | None,
        in_place: bool,
        group_cost_tokens: int,
    ) -> None:
        self._layout = layout
        self._prefixes = prefixes
        self._in_place = in_place and prefixes is not None
        self._group_cost_tokens = group_cost_tokens
        self._cleared_at_bytes = 0

    def start(self, submit: Submit, tokens: array[int]) -> CachedRow:
        """The longest prefix that can be restored, made ready for a row of the batch."""
        lease = None
        if self._prefixes is not None:
            lease = self._prefixes.lookup(tokens, submit.salt, submit.system_tokens)
        known = 0 if lease is None else lease.length
        layers = self._layout.start(lease, 0, len(tokens) - known)
        return CachedRow(submit, tokens, known, known, layers, lease)

    def regroup(self, rows: Mapping[int, CachedRow]) -> dict[int, int]:
        """After rows have come or prompts are whole: how many pieces of its (renewed) lease each row attends
        to in place; without the rows that have none."""
        if self._prefixes is None or not self._in_place:
            return {}
        paths: dict[int, RowPath] = {}
        for number, row in rows.items():
            renewed = self._prefixes.pin(row.tokens[: row.done_tokens], row.submit.salt)
            if row.layers and self._layout.needs_state and row.lease is not None:
                renewed.snapshot = row.lease.snapshot
            self.end(row)
            row.lease = renewed
            runs = [(id(segment), taken) for segment, taken in renewed.pieces]
            paths[number] = RowPath(runs, row.done_tokens)
        changed: dict[int, int] = {}
        for number, worth in runs_in_place(paths, self._group_cost_tokens).items():
            row, depth, shared = rows[number], 0, 0
            for _, taken in paths[number].runs:
                if depth >= worth and shared >= row.shared_tokens:
                    break
                depth, shared = depth + 1, shared + taken
            row.shared_tokens = shared
            if shared:
                changed[number] = depth
        return changed

    def settle(self, rows: Iterable[CachedRow]) -> None:
        """Rows are as `regroup` has said: of what is kept, they hold on to what they attend to in place. The
        rest they have copies of, and it may be evicted like anything else."""
        if self._prefixes is None or not self._in_place:
            return
        for row in rows:
            if not row.layers and row.lease is not None and row.lease.length > row.shared_tokens:
                kept = self._prefixes.pin(row.tokens[: row.shared_tokens], row.submit.salt)
                self.end(row)
                row.lease = kept

    def restart(self, row: CachedRow, runs: int) -> None:
        """A row that has not joined a batch yet will share so many pieces of its lease in place."""
        row.layers[:] = self._layout.start(row.lease, runs, len(row.tokens) - row.cached_tokens)

    def keep(
        self, row: CachedRow, tokens: array[int], layers: Sequence[Any], whole: bool, session_end: bool
    ) -> None:
        """Keep what was computed for `tokens`, from `layers` as BatchGenerator extracts them.

        `whole`: the layers stand right after `tokens`, so the state of those that cannot be cut is theirs.
        `session_end`: these are a turn of the row's session, not the beginning of one.
        """
        if self._prefixes is None or not tokens:
            return
        if self._layout.needs_state and not whole:
            return  # Nothing could be restored here.
        submit = row.submit
        self._prefixes.store(
            tokens,
            submit.salt,
            lambda start, end: self._layout.cut(layers, start, end),
            submit.session if session_end else None,
            submit.system_tokens,
        )
        if self._layout.needs_state:
            self._prefixes.attach(tokens, submit.salt, self._layout.state(layers))

    def end(self, row: CachedRow) -> None:
        """The row has left the batch, or never joined it."""
        if self._prefixes is not None and row.lease is not None:
            self._prefixes.release(row.lease)
            row.lease = None

    def reserve(self, running_bytes: int) -> None:
        """Leave room for what the rows hold now; what was evicted goes back to the device when it is much."""
        if self._prefixes is None:
            return
        self._prefixes.reserve(running_bytes)
        if self._prefixes.evicted_bytes - self._cleared_at_bytes >= _CLEAR_AT_BYTES:
            self._cleared_at_bytes = self._prefixes.evicted_bytes
            mx.clear_cache()
