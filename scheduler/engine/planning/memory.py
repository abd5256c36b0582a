"""The KV cache's memory: its budget, which sequences fit into it, and which are preempted. Plain arithmetic.

A row is charged its own bytes (what it shares is in the prefix cache, which is charged as pinned) and a part
of its remaining answer. A reserve for every row's full max_tokens would leave most of the memory idle (vLLM
reserves nothing and preempts more, SGLang reserves a clipped share as here).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass
from functools import cached_property

from scheduler.engine.sequence import EngineSequence
from scheduler.shared.row_bytes import RowBytes
from scheduler.shared.token_ids import KEY_BYTES

GROWTH_TOKENS = 512
"""Reserved for a row's remaining answer; SGLang clips at 4096, on devices with ten times the memory."""
MOST_PREEMPTIONS = 3
"""Preemptions of one sequence (healthy vLLM traces show up to 4, inference-sim#963); then it keeps its
slot."""


@dataclass(frozen=True)
class Memory:
    """The budget for cached prefixes and running rows together, and its use before a step.

    `kept_bytes`: everything in the prefix cache. `count_pinned_bytes`: the part of it that running rows lease
    and that cannot be evicted; a walk over all leases, so it is called at most once a plan and only if the
    plan depends on it. `whole_bytes`: the most that the budget may ever be, without relief and with the
    highest limit: a prompt that exceeds it is refused. None if that is `budget_bytes`.
    """

    budget_bytes: int
    row_bytes: RowBytes
    kept_bytes: int
    count_pinned_bytes: Callable[[], int]
    whole_bytes: int | None = None

    @cached_property
    def pinned_bytes(self) -> int:
        return self.count_pinned_bytes()

    def exceeded_tokens(self, sequence: EngineSequence) -> int | None:
        """Return the longest prompt that can run here if this one is longer, or None."""
        # Without the answer so far: a resumed request was accepted before.
        prompt_tokens = sequence.asked_tokens
        # Against the whole budget, under which it may have been accepted: alone it runs even with less.
        whole_bytes = self.budget_bytes if self.whole_bytes is None else self.whole_bytes
        most = self.row_bytes.fitting_tokens(whole_bytes, prompt_tokens)
        return most if most < prompt_tokens else None

    def room_bytes(self, running: Iterable[EngineSequence]) -> int:
        """Return what these rows leave of the budget; negative if they have outgrown it."""
        return (
            self.budget_bytes - self.pinned_bytes - sum(charged_bytes(row, self.row_bytes) for row in running)
        )

    def coming_bytes(self, sequence: EngineSequence, in_place: int, running: Iterable[EngineSequence]) -> int:
        """Return what a sequence that attends to its first `in_place` tokens in place adds beside these rows:
        its own charge, and what is pinned for it alone."""
        pinned = 0
        if in_place:
            shared = (min(sequence.shared_with(row), row.in_place_tokens) for row in running)
            pinned = min(in_place, max(shared, default=0))
        own = charged_bytes(sequence, self.row_bytes, in_place)
        return own + (in_place - pinned) * (self.row_bytes.token_bytes + KEY_BYTES)

    def victims(self, running: Collection[EngineSequence]) -> list[EngineSequence]:
        """Return the rows to preempt, in this order, until the others fit: the fewest generated tokens first,
        to minimize recomputation, and the younger of two. One row always stays."""
        held_bytes = sum(charged_bytes(row, self.row_bytes) for row in running)
        if held_bytes + self.kept_bytes <= self.budget_bytes:
            return []  # This runs every step; kept >= pinned, and kept needs no walk.
        excess = held_bytes + self.pinned_bytes - self.budget_bytes
        movable = [row for row in running if row.preemptions < MOST_PREEMPTIONS]
        movable.sort(key=lambda row: (row.generated_tokens, -row.request_id))
        chosen: list[EngineSequence] = []
        for row in movable:
            if excess <= 0 or len(running) - len(chosen) < 2:
                break
            chosen.append(row)
            excess -= charged_bytes(row, self.row_bytes)
        return chosen


def charged_bytes(sequence: EngineSequence, row_bytes: RowBytes, in_place_tokens: int | None = None) -> int:
    """Return a running row's own bytes, with its reserve. `in_place_tokens` overrides the sequence's."""
    in_place = sequence.in_place_tokens if in_place_tokens is None else in_place_tokens
    # The tokens that it may generate after its admission.
    still = min(sequence.submit.max_tokens + sequence.asked_tokens - sequence.prompt_tokens, GROWTH_TOKENS)
    answer = max(still, sequence.new_tokens + 1)
    return row_bytes.held(sequence.prompt_tokens + answer, in_place)
