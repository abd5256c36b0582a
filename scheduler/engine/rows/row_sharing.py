"""Which runs of kept tokens the live rows share in place: a plain function of who stands on what."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import TypeAlias

PathKey: TypeAlias = Sequence[tuple[int, int]]
"""(segment, tokens taken of it) pairs from position 0."""

GROUP_COST_TOKENS = 512
"""What one more group costs a step, in tokens of keys and values that need not be read: its operations in
every layer (measured with the 13M model on a CPU, where they weigh most)."""


def shared_runs(paths: Mapping[int, PathKey], group_cost_tokens: int = GROUP_COST_TOKENS) -> dict[int, int]:
    """How many leading runs of each row's path are worth sharing in place; rows are known by any number.

    A run saves its tokens once for every row but one. What is shared is the beginning of a path, because
    deeper runs never have more rows than those above them.
    """
    rows = Counter(run for path in paths.values() for run in path)
    return {row: _best_depth(path, rows, group_cost_tokens) for row, path in paths.items()}


def _best_depth(path: PathKey, rows: Mapping[tuple[int, int], int], group_cost_tokens: int) -> int:
    best = saved = depth = 0
    for count, run in enumerate(path, 1):
        if rows[run] < 2:
            break
        saved += (rows[run] - 1) * run[1] - group_cost_tokens
        if saved > best:
            best, depth = saved, count
    return depth
