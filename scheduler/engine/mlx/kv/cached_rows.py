"""The rows' use of the prefix cache: the prefix hit at admission, shared runs, and what a row adds.

The life of a row: `start` (look up, lease), `keep` at each checkpoint (a pause, the end of its prompt, a
waiting follower, its own end), `release`. The order matters: the lease pins the path of the prefix hit, so
that its own tokens always have a path to continue, and shared runs stay in place.
"""

from __future__ import annotations

from array import array
from collections import abc
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Literal

import mlx.core as mx

from scheduler.engine.mlx.kv.cache_layout import CacheLayout, RowState
from scheduler.engine.mlx.kv.kv_segment import KvSegment
from scheduler.engine.mlx.sampling.row_sampling import RowSampling
from scheduler.engine.prefix.prefix_cache import PrefixCache
from scheduler.engine.prefix.radix_tree import Lease
from scheduler.engine.row_sharing import RowPath, runs_in_place
from scheduler.engine.sequence import Sequence

_CLEAR_AT_BYTES = 256 << 20
"""MLX caches freed buffers; after evicting this much, return them to the device."""


@dataclass(slots=True, eq=False)
class Row:
    """One sequence in the batch: its sampling, and its lease on the prefix cache."""

    sequence: Sequence
    sampling: RowSampling
    start_layers: list[Any]
    """The initial caches; empty once the row has joined a batch, which has its own."""
    lease: Lease[KvSegment, RowState] | None
    uid: int = -1
    """BatchGenerator's id of the row, once it has joined."""

    @property
    def joined(self) -> bool:
        return self.uid >= 0

    @property
    def last_prompt_token(self) -> int:
        return self.sequence.tokens[self.sequence.prompt_tokens - 1]

    def prompt_chunk(self, tokens: int) -> list[int]:
        """Return its next prompt tokens, and count them as computed."""
        start = self.sequence.computed_tokens
        self.sequence.computed_tokens = start + tokens
        return self.sequence.tokens[start : start + tokens].tolist()

    def end_with(self, token: int) -> Literal["stop", "length"] | None:
        """Append a token to its answer. Return whether and how the answer ends with it."""
        self.sequence.tokens.append(token)
        if token in self.sequence.submit.stop_token_ids:
            return "stop"
        return "length" if self.sequence.generated_tokens >= self.sequence.submit.max_tokens else None


class CachedRows:
    """`prefixes` None: no prefix cache, and rows begin empty. `in_place`: the model's attention was replaced,
    so rows may share."""

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

    def start(self, sequence: Sequence, sampling: RowSampling) -> Row:
        """Return a row with the longest prefix that can be restored."""
        submit, lease = sequence.submit, None
        if self._prefixes is not None:
            lease = self._prefixes.match_and_lease(sequence.tokens, submit.salt, submit.system_tokens)
        known = 0 if lease is None else lease.length
        sequence.computed_tokens = sequence.cached_tokens = known
        sequence.in_place_tokens = 0
        return Row(sequence, sampling, self._layout.start(lease, 0, sequence.prompt_tokens - known), lease)

    def regroup(self, rows: abc.Sequence[Row]) -> dict[Row, int]:
        """Return, after rows have joined or prompts are complete, how many pieces of its (renewed) lease each
        row attends to in place; rows without any are omitted."""
        if self._prefixes is None or not self._in_place:
            return {}
        paths: dict[int, RowPath] = {}
        for number, row in enumerate(rows):
            prefilled = row.sequence.prefilled_tokens
            renewed = self._prefixes.pin(row.sequence.tokens[:prefilled], row.sequence.submit.salt)
            if not row.joined and self._layout.needs_state and row.lease is not None:
                renewed.snapshot = row.lease.snapshot
            self.release(row)
            row.lease = renewed
            paths[number] = RowPath([(id(segment), taken) for segment, taken in renewed.pieces], prefilled)
        changed: dict[Row, int] = {}
        for number, worth in runs_in_place(paths, self._group_cost_tokens).items():
            sequence, depth, shared = rows[number].sequence, 0, 0
            for _, taken in paths[number].runs:
                if depth >= worth and shared >= sequence.in_place_tokens:
                    break
                depth, shared = depth + 1, shared + taken
            sequence.in_place_tokens = shared
            if shared:
                changed[rows[number]] = depth
        return changed

    def trim_leases(self, rows: Iterable[Row]) -> None:
        """Shorten leases: rows of a batch have copies of what they do not attend to in place, so that may be
        evicted."""
        if self._prefixes is None or not self._in_place:
            return
        for row in rows:
            in_place = row.sequence.in_place_tokens
            if row.joined and row.lease is not None and row.lease.length > in_place:
                kept = self._prefixes.pin(row.sequence.tokens[:in_place], row.sequence.submit.salt)
                self.release(row)
                row.lease = kept

    def restart(self, row: Row, runs: int) -> None:
        """Share `runs` pieces of its lease in place, for a row that has not joined a batch yet."""
        sequence = row.sequence
        row.start_layers = self._layout.start(
            row.lease, runs, sequence.prompt_tokens - sequence.cached_tokens
        )

    def keep(
        self, row: Row, tokens: array[int], layers: abc.Sequence[Any], whole: bool, session_end: bool
    ) -> None:
        """Put `tokens` into the prefix cache, from `layers` as the batch's views give them.

        `whole`: the layers are right after `tokens`, so the state of those that cannot be cut is valid.
        `session_end`: these are a turn of the row's session, not the beginning of one.
        """
        if self._prefixes is None or not tokens:
            return
        if self._layout.needs_state and not whole:
            return  # Nothing could be restored from here.
        submit = row.sequence.submit
        self._prefixes.insert(
            tokens,
            submit.salt,
            lambda start, end: self._layout.cut(layers, start, end),
            submit.session if session_end else None,
            submit.system_tokens,
        )
        if self._layout.needs_state:
            self._prefixes.attach(tokens, submit.salt, self._layout.state(layers))

    def release(self, row: Row) -> None:
        """Release the row's lease."""
        if self._prefixes is not None and row.lease is not None:
            self._prefixes.release(row.lease)
            row.lease = None

    def set_running_bytes(self, running_bytes: int) -> None:
        """Leave room for the rows' current bytes; if much was evicted, return it to the device."""
        if self._prefixes is None:
            return
        self._prefixes.set_running_bytes(running_bytes)
        if self._prefixes.evicted_bytes - self._cleared_at_bytes >= _CLEAR_AT_BYTES:
            self._cleared_at_bytes = self._prefixes.evicted_bytes
            mx.clear_cache()
