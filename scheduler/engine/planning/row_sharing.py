"""Which cached runs rows attend to in place: a pure function of their paths.

There are two reasons to leave a run in place. If several rows begin with it, it would be copied (and read)
once for each. If one row is much longer than the others, all of them would be padded to its length.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import TypeAlias

Runs: TypeAlias = Sequence[tuple[int, int]]
"""(segment, tokens taken of it) pairs from position 0."""

GROUP_COST_TOKENS = 512
"""The cost of one more group in a step, in tokens of keys and values that it must save: its operations in
every layer. Measured with the 13M model on a CPU; an engine measures its own at load (`mlx/group_cost.py`),
and this one counts where it cannot."""


_MOST_COPIES = 1 / 128
"""Fraction of the KV budget that copies may take of one run, however much time they save: the tokens that a
group must save are those that would be in memory once more."""


def bounded_cost(measured_tokens: int | None, token_bytes: int, kv_budget_bytes: int) -> int:
    """Return the cost of a group by which to decide, in tokens. `measured_tokens` is None if there was no
    measurement. Sharing is about memory, too: a GPU that reads quickly would copy a prefix of 8,000 tokens, a
    gigabyte of a large model's."""
    if measured_tokens is None:
        return GROUP_COST_TOKENS
    most = int(kv_budget_bytes * _MOST_COPIES) // max(1, token_bytes)
    return min(measured_tokens, max(GROUP_COST_TOKENS, most))


@dataclass(frozen=True, slots=True)
class RowPath:
    """The cached segments of a row's prefix, and its total number of tokens."""

    runs: Runs
    tokens: int


def runs_in_place(
    paths: Mapping[int, RowPath], group_cost_tokens: int = GROUP_COST_TOKENS, saving: bool = False
) -> dict[int, int]:
    """Return how many leading runs of each row's path are worth leaving in place; rows are known by any
    number.

    With `saving`, all of them, at any cost in time.

    In place are the beginnings of paths: deeper runs never have more rows than those above them.
    """
    if saving:
        return {row: len(path.runs) for row, path in paths.items()}
    users = Counter(run for path in paths.values() for run in path.runs)
    depths = {row: _best_depth(path.runs, users, group_cost_tokens) for row, path in paths.items()}
    private = {
        row: path.tokens - sum(taken for _, taken in path.runs[: depths[row]]) for row, path in paths.items()
    }
    while len(private) > 1:
        longest = max(private, key=private.__getitem__)
        next_longest = max(tokens for row, tokens in private.items() if row != longest)
        runs, begun = paths[longest].runs, depths[longest]
        longer = private[longest] - next_longest
        depths[longest] = _least_padding(runs, begun, longer, len(private) - 1, group_cost_tokens)
        if depths[longest] == begun:
            break
        private[longest] -= sum(tokens for _, tokens in runs[begun : depths[longest]])
    return depths


def hit_in_place(
    hit_ends: Sequence[int],
    shared: Sequence[int],
    own: Sequence[int],
    group_cost_tokens: int,
    saving: bool = False,
) -> int:
    """Return how many tokens of its prefix hit a sequence that is admitted attends to in place. The plan
    decides it before the row has a path: what the plan itself keeps will cut the tree, and the other rows'
    paths are not known to it. When the row has started, `runs_in_place` may leave more in place, never less.

    `hit_ends`: where the hit's segments end. `shared`: the tokens that each running row begins with as well.
    `own`: those that each has for itself."""
    known_tokens = hit_ends[-1]
    if saving:
        return known_tokens
    ordered = sorted(min(known_tokens, tokens) for tokens in shared)
    ends = sorted({0, *hit_ends, *ordered})
    runs = [(end, end - start) for start, end in pairwise(ends)]
    users = {run: 1 + len(ordered) - bisect_left(ordered, run[0]) for run in runs}
    depth = _best_depth(runs, users, group_cost_tokens)
    longer = known_tokens - ends[depth] - max(own, default=0)
    return ends[_least_padding(runs, depth, longer, len(own), group_cost_tokens)]


def _least_padding(runs: Runs, begun: int, longer: int, others: int, group_cost_tokens: int) -> int:
    """Return at which depth from `begun` on a row that is `longer` tokens longer than all others saves most
    of their padding."""
    best, best_depth, taken = 0, begun, 0
    # Check all depths: a few tokens that all rows begin with come before the rest, and save nothing.
    for depth, (_, tokens) in enumerate(runs[begun:], begun + 1):
        taken += tokens
        saved = min(taken, longer) * others - (depth - begun) * group_cost_tokens
        if saved > best:
            best, best_depth = saved, depth
    return best_depth


def _best_depth(runs: Runs, users: Mapping[tuple[int, int], int], group_cost_tokens: int) -> int:
    """Return how many leading runs save the most: each run saves its tokens once for every row but one."""
    best = saved = depth = 0
    for count, run in enumerate(runs, 1):
        if users[run] < 2:
            break
        saved += (users[run] - 1) * run[1] - group_cost_tokens
        if saved > best:
            best, depth = saved, count
    return depth
