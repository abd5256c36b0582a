"""Which engine gets the next request. Pure.

The fair queue decides which request is next, this module where it goes. The cost of an engine is the
estimated time until the answer is complete there: as in Dynamo's KV router, but in learned seconds instead of
weighted blocks.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from scheduler.engines.speeds import Speeds


@dataclass(frozen=True, slots=True)
class Candidate:
    """An engine with room for the request. `requests`: those that it holds, of which `slots` can run;
    `backlog_tokens`: prompt tokens of theirs that it has yet to compute; `uncached_tokens`: those of the
    request's prompt that its prefix cache is not likely to have; `cached_tokens`: the others;
    `furthest_tokens`: output tokens of the longest answer among its requests."""

    engine: str
    requests: int
    slots: int
    backlog_tokens: int
    uncached_tokens: int
    speeds: Speeds
    cached_tokens: int = 0
    furthest_tokens: int = 0


def least_seconds(candidates: Sequence[Candidate], output_tokens: float, last: str | None) -> Candidate:
    """Return the one with the least estimated time; among equal ones the session's last engine, or else the
    one with the fewest requests. There is at least one. `output_tokens`: expected of the answer; `last`: the
    engine that had the session's last request."""
    return min(
        candidates,
        key=lambda one: (
            # To the microsecond: sums of the same parts must not differ by their order.
            round(estimated_seconds(one, output_tokens), 6),
            one.engine != last,
            one.requests,
        ),
    )


def estimated_seconds(candidate: Candidate, output_tokens: float) -> float:
    """Return the time until the answer is complete: what must be computed before it, its wait for a slot, and
    what the rows beside it add to each of its steps."""
    speeds, rows = candidate.speeds, min(candidate.requests, candidate.slots)
    context = candidate.cached_tokens + candidate.uncached_tokens / 2
    prefill = speeds.prefill_seconds(candidate.backlog_tokens, rows)
    prefill += speeds.prefill_seconds(candidate.uncached_tokens, rows, context)
    wait = 0.0
    if (ahead := candidate.requests - candidate.slots + 1) > 0:
        # Its furthest row ends first; after that a slot becomes free every `turn` steps. After a burst all
        # rows are at their beginning.
        turn = output_tokens / candidate.slots
        first = max(turn, output_tokens - candidate.furthest_tokens)
        wait = (first + (ahead - 1) * turn) * speeds.step_seconds(rows)
    return prefill + wait + rows * speeds.row_seconds * output_tokens
