"""What the coming step changes: a plain function of what waits, what runs and what is kept.

Requests join in order of arrival, but one does not compute what another is just computing: while a leader
prefills a prefix that both begin with, its followers wait, and join as hits as soon as it has got there.
Nobody waits for a leader that has gone: the plan is made anew for every step.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from scheduler.engine.backend import Restorable
from scheduler.engine.memory_plan import Memory, left_in_place
from scheduler.engine.prefix.stops import SCAFFOLD_TOKENS, stops_of
from scheduler.engine.sequence import Sequence

PATIENCE_SECONDS = 10.0
"""For so long a request that does not fit yet lets smaller ones pass."""


@dataclass(frozen=True, slots=True)
class Keep:
    """Put the first `tokens` tokens of a running row into the prefix cache."""

    request_id: int
    tokens: int


@dataclass(frozen=True, slots=True)
class Plan:
    """To be carried out in this order."""

    keep: tuple[Keep, ...]
    admit: tuple[Sequence, ...]


def plan(
    waiting: Iterable[Sequence],
    running: Iterable[Sequence],
    free_slots: int,
    restorable: Restorable,
    cached_tokens: Callable[[Sequence], int],
    memory: Memory | None = None,
    now: float = 0.0,
) -> Plan:
    """Who joins now. Sets the stops of those that do.

    `cached_tokens` tells how much of a prompt the prefix cache has. `memory` None: slots alone bind.
    """
    running = list(running)
    waiting = list(waiting) if free_slots > 0 else []
    leaders = [] if restorable == "never" else [sequence for sequence in running if sequence.prefilling]
    keep: dict[int, int] = {}
    admit: list[Sequence] = []
    rows = running.copy()
    # Once, and not for each that waits: where memory binds, all of them are asked about before every step.
    room_bytes = 0 if memory is None or not waiting else memory.room_bytes(rows)
    for sequence in waiting:
        if len(admit) == free_slots:
            break
        known = cached_tokens(sequence) if restorable != "never" else 0
        best = _best_leader(sequence, leaders, restorable)
        if best is not None and best[1] >= known + SCAFFOLD_TOKENS:
            leader, shared = best
            if leader.prefilled_tokens < shared:
                continue
            if restorable == "anywhere":
                keep[leader.request_id] = max(shared, keep.get(leader.request_id, 0))
                known = shared
        if memory is not None and not memory.fits(sequence, known, rows, room_bytes):
            if now - sequence.arrived_at > PATIENCE_SECONDS:
                break  # Smaller ones have passed it for long enough: what they free is its, from now on.
            continue
        # Provisional: whoever admits it says how much was found in the end, and what of it is in place.
        sequence.in_place_tokens = left_in_place(sequence, known, rows)
        sequence.prefilled_tokens = known
        if restorable == "at_stops":
            followed = [other.shared_with(sequence) for other in waiting if other is not sequence]
            sequence.stops = stops_of(sequence.submit.boundaries, followed, known, len(sequence.tokens))
        if memory is not None:
            room_bytes -= memory.coming_bytes(sequence, known, rows)
        admit.append(sequence)
        rows.append(sequence)
        if restorable != "never":
            leaders.append(sequence)
    return Plan(tuple(Keep(request_id, tokens) for request_id, tokens in keep.items()), tuple(admit))


def _best_leader(
    sequence: Sequence, leaders: Iterable[Sequence], restorable: Restorable
) -> tuple[Sequence, int] | None:
    """The leader that will have computed most of this prompt, and how much of it can be continued."""
    best: tuple[Sequence, int] | None = None
    for leader in leaders:
        shared = sequence.shared_with(leader)
        if restorable == "at_stops":
            shared = max((stop for stop in leader.stops if stop <= shared), default=0)
        if best is None or shared > best[1]:
            best = (leader, shared)
    return best
