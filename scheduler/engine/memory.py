"""Which sequences fit into the KV cache's bytes, and which are preempted: plain arithmetic, known in advance.

A row is charged what it holds for itself (what it shares lies in the prefix cache, which is charged as
pinned) and a part of the answer to come: a reserve for every row's full max_tokens would leave most of the
memory idle (vLLM reserves nothing and preempts more, SGLang a clipped share as here).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass
from functools import cached_property

from scheduler.engine.prefix.radix_tree import KEY_BYTES
from scheduler.engine.row_bytes import RowBytes
from scheduler.engine.sequence import Sequence

GROWTH_TOKENS = 512
"""Of an answer to come, reserved at admission; SGLang clips at 4096, on devices with ten times the memory."""
MOST_PREEMPTIONS = 3
"""Of one sequence: vLLM's healthy traces show up to 4 (inference-sim#963); then it keeps its slot."""


@dataclass(frozen=True)
class Memory:
    """The budget for kept prefixes and running rows together, and what of it is in use before a step.

    `kept_bytes`: of the prefix cache, all that it holds. `count_pinned_bytes`: of that, what running rows use
    and nobody can evict; a walk over all leases, so it is called at most once a plan and only if the plan
    depends on it. `share`: `budget_bytes` as a part of what the operator allowed, less than 1 after an engine
    that ran out of memory.
    """

    budget_bytes: int
    row_bytes: RowBytes
    kept_bytes: int
    count_pinned_bytes: Callable[[], int]
    share: float = 1.0

    @cached_property
    def pinned_bytes(self) -> int:
        return self.count_pinned_bytes()

    def refusal(self, sequence: Sequence) -> str | None:
        """Why this request could never run here."""
        # Without the answer so far: a request that goes on was accepted once.
        prompt_tokens = sequence.asked_tokens
        needed = self.row_bytes.held(prompt_tokens)
        # By the whole budget, under which it may have been accepted: alone it runs, whatever is left of that.
        if needed <= (whole_bytes := round(self.budget_bytes / self.share)):
            return None
        return (
            f"the prompt's {prompt_tokens} tokens need {needed} bytes of KV cache,"
            f" and there are {whole_bytes} (--kv-cache-bytes)"
        )

    def room_bytes(self, running: Iterable[Sequence]) -> int:
        """What these leave of the budget; below 0 where they have grown beyond it."""
        return (
            self.budget_bytes - self.pinned_bytes - sum(charged_bytes(row, self.row_bytes) for row in running)
        )

    def coming_bytes(self, sequence: Sequence, known_tokens: int, running: Iterable[Sequence]) -> int:
        """What a sequence with a prefix hit of `known_tokens` takes of the room beside these rows: its own
        charge, and what is pinned for it and for no row before it. It leaves in place what one of them begins
        with, too; the rest of the hit it copies."""
        in_place = pinned = 0
        for row in running:
            shared = min(known_tokens, sequence.shared_with(row))
            in_place, pinned = max(in_place, shared), max(pinned, min(shared, row.in_place_tokens))
        own = charged_bytes(sequence, self.row_bytes, in_place)
        return own + (in_place - pinned) * (self.row_bytes.token_bytes + KEY_BYTES)

    def victims(self, running: Collection[Sequence]) -> list[Sequence]:
        """Whom to preempt, in this order, until the others fit: the fewest generated tokens first, so that
        the least is computed again, and the younger of two. One row always stays."""
        held_bytes = sum(charged_bytes(row, self.row_bytes) for row in running)
        if held_bytes + self.kept_bytes <= self.budget_bytes:
            return []  # Every step asks; what is kept is at least what is pinned, and takes no walk to know.
        excess = held_bytes + self.pinned_bytes - self.budget_bytes
        movable = [row for row in running if row.preemptions < MOST_PREEMPTIONS]
        movable.sort(key=lambda row: (row.generated_tokens, -row.request_id))
        chosen: list[Sequence] = []
        for row in movable:
            if excess <= 0 or len(running) - len(chosen) < 2:
                break
            chosen.append(row)
            excess -= charged_bytes(row, self.row_bytes)
        return chosen


def left_in_place(sequence: Sequence, known_tokens: int, rows: Iterable[Sequence]) -> int:
    """What of a prefix hit a sequence will probably attend to in place beside these rows."""
    return min(known_tokens, max((sequence.shared_with(row) for row in rows), default=0))


def charged_bytes(sequence: Sequence, row_bytes: RowBytes, in_place_tokens: int | None = None) -> int:
    """What a running row holds for itself, with its reserve. `in_place_tokens`: other than its own."""
    in_place = sequence.in_place_tokens if in_place_tokens is None else in_place_tokens
    still = min(sequence.submit.max_tokens - sequence.generated_tokens + sequence.new_tokens, GROWTH_TOKENS)
    answer = max(still, sequence.new_tokens + 1)
    return row_bytes.held(sequence.prompt_tokens + answer, in_place)
