"""The rows' use of the prefix cache: the prefix hit at admission, shared runs, and what a row adds.

The life of a row: `start` (look up, lease), `keep` at each checkpoint (a pause, the end of its prompt, a
waiting follower, its own end), `release`. The order matters: the lease pins the path of the prefix hit, so
that its own tokens always have a path to continue, and shared runs stay in place.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

from scheduler.engine.backend import take_holds
from scheduler.engine.mlx.device import device
from scheduler.engine.mlx.kv.cache_layout import CacheLayout, RowState
from scheduler.engine.mlx.kv.kv_segment import KvSegment
from scheduler.engine.mlx.sampling.row_sampling import RowSampling
from scheduler.engine.planning.row_sharing import RowPath, runs_in_place
from scheduler.engine.prefix.nodes import Lease
from scheduler.engine.prefix.prefix_cache import PrefixCache
from scheduler.engine.sequence import EngineSequence

_CLEAR_AT_BYTES = 256 << 20
"""MLX caches freed buffers; after evicting this much, return them to the device."""


@dataclass(slots=True, eq=False)
class Row:
    """One sequence in the batch: its sampling, and its lease on the prefix cache."""

    sequence: EngineSequence
    sampling: RowSampling
    lease: Lease[KvSegment, RowState] | None
    runs: int = 0
    """The pieces of its lease that it is to attend to in place when it joins a batch."""
    joined: bool = False
    """Whether it is in a batch: from its first chunk until it leaves."""

    def start_layers(self, layout: CacheLayout) -> list[Any]:
        """Return its caches as it joins a batch."""
        coming = self.sequence.prompt_tokens - self.sequence.cached_tokens
        return layout.start(self.lease, self.runs, coming)

    @property
    def adapter(self) -> str:
        """Return the key of its LoRA adapter, or an empty string without one."""
        return self.sequence.submit.adapter

    @property
    def last_prompt_token(self) -> int:
        return self.sequence.tokens[self.sequence.prompt_tokens - 1]

    @property
    def ends_with_next(self) -> bool:
        """Return whether its answer ends with the next token, whatever that is."""
        return self.sequence.generated_tokens + 1 >= self.sequence.submit.max_tokens

    def prompt_chunk(self, tokens: int) -> list[int]:
        """Return its next prompt tokens, and count them as computed."""
        start = self.sequence.computed_tokens
        self.sequence.computed_tokens = start + tokens
        return self.sequence.tokens[start : start + tokens].tolist()

    def end_with(self, token: int) -> Literal["stop", "length"] | None:
        """Append a token to its answer. Return how the answer ends with it, or None if it does not end."""
        for judge in (self.sampling.thinking, self.sampling.constraint):
            if judge is not None:
                judge.accept_at(self.sequence.generated_tokens, token)
        self.sequence.tokens.append(token)
        if token in self.sequence.submit.stop_token_ids:
            return "stop"
        return "length" if self.sequence.generated_tokens >= self.sequence.submit.max_tokens else None


RowLeases: TypeAlias = Mapping[Row, tuple[Lease[KvSegment, RowState], int]]
"""Rows with the number of pieces of their lease that they attend to in place."""


class CachedRows:
    """The rows' use of a prefix cache. `prefixes` is None without one; rows then begin empty.
    `group_cost_tokens`: as in `BackendFacts`."""

    def __init__(
        self,
        layout: CacheLayout,
        prefixes: PrefixCache[KvSegment, RowState] | None,
        group_cost_tokens: int | None,
    ) -> None:
        self._layout = layout
        self._prefixes = prefixes
        self._group_cost_tokens = group_cost_tokens
        self._cleared_at_bytes = 0
        self.saving = False
        """Whether rows attend in place to all that is cached of them."""

    def start(self, sequence: EngineSequence, sampling: RowSampling, in_place_tokens: int) -> Row:
        """Return a row with the longest prefix that can be restored, or with none if log-probabilities of its
        prompt are still to be computed. It attends to the first `in_place_tokens` of it in place."""
        submit, lease = sequence.submit, None
        if self._prefixes is not None and not sequence.unscored:
            lease = self._prefixes.match_and_lease(sequence.known, submit.system_tokens, submit.session)
        sequence.computed_tokens = sequence.cached_tokens = 0 if lease is None else lease.length
        sequence.in_place_tokens = min(in_place_tokens, sequence.cached_tokens)
        return Row(sequence, sampling, lease)

    def regroup(self, rows: Sequence[Row]) -> RowLeases:
        """Decide what each row attends to in place from now on, after rows were added or prompts completed.
        Return the rows in a batch for which that changes.

        They have copies of what they do not attend to in place: they do not lease that, so it may be evicted.
        """
        if self._prefixes is None or self._group_cost_tokens is None:
            return {}
        matches = [self._prefixes.match(row.sequence.known, row.sequence.prefilled_tokens) for row in rows]
        paths = {
            number: RowPath(
                [(id(segment), taken) for segment, taken in match.pieces], row.sequence.prefilled_tokens
            )
            for number, (row, match) in enumerate(zip(rows, matches, strict=True))
        }
        changed: dict[Row, tuple[Lease[KvSegment, RowState], int]] = {}
        outdated: list[Lease[KvSegment, RowState]] = []
        for number, worth in runs_in_place(paths, self._group_cost_tokens, self.saving).items():
            row, match = rows[number], matches[number]
            before = row.sequence.in_place_tokens
            depth, in_place = _at_least(paths[number], worth, before)
            row.sequence.in_place_tokens = in_place
            leased = match.until(in_place) if row.joined else match
            renew = row.lease is None or row.lease.pieces != leased.pieces
            if renew:
                if row.lease is not None:  # A row that took no prefix hit has none yet.
                    outdated.append(row.lease)
                row.lease = self._prefixes.pin(leased)
            if not row.joined:
                row.runs = depth
            elif depth and (renew or in_place != before) and row.lease is not None:
                changed[row] = row.lease, depth
        # Release only after all are renewed: a release may evict what the match of another row stands on.
        for lease in outdated:
            self._prefixes.release(lease)
        return changed

    def keep(self, row: Row, tokens: int, layers: Sequence[Any], whole: bool, session_end: bool) -> None:
        """Put the row's first `tokens` into the prefix cache, from `layers` as the batch's views give them.

        `whole`: the layers are right after these, so the state of those that cannot be cut is valid.
        `session_end`: these are a turn of the row's session, not the beginning of one.
        """
        if self._prefixes is None or not tokens:
            return
        if self._layout.needs_state and not whole:
            return  # Nothing could be restored from here.
        submit, known = row.sequence.submit, row.sequence.known
        self._prefixes.insert(
            known,
            lambda start, end: self._layout.cut(layers, start, end),
            submit.session if session_end else None,
            submit.system_tokens,
            tokens,
        )
        if self._layout.needs_state:
            self._prefixes.attach(known, self._layout.state(layers), tokens)

    def hold(self, row: Row) -> None:
        """Take the holds that its request asked for, as far as they are cached."""
        take_holds(self._prefixes, row.sequence)

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
            device().free_buffers()


def _at_least(path: RowPath, worth: int, tokens: int) -> tuple[int, int]:
    """Return how many runs of its path a row attends to in place, and their tokens: as many as it is worth,
    and never fewer tokens than before, which it has no copies of."""
    depth = shared = 0
    for _, taken in path.runs:
        if depth >= worth and shared >= tokens:
            break
        depth, shared = depth + 1, shared + taken
    return depth, shared
