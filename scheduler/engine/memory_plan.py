"""Who fits into the bytes for keys and values, and who must give way: plain arithmetic, known in advance.

A row is charged what it holds for itself (what it shares lies in the prefix cache, which is charged as
pinned) and a part of what it may still say: a reserve for every row's full max_tokens would leave most of the
memory idle (vLLM reserves nothing and preempts more, SGLang a clipped share as here).
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass

from scheduler.engine.prefix.radix_tree import KEY_BYTES
from scheduler.engine.row_bytes import RowBytes
from scheduler.engine.sequence import Sequence

GROWTH_TOKENS = 512
"""Of an answer to come, reserved at admission; SGLang clips at 4096, on devices with ten times the memory."""
MOST_PREEMPTIONS = 3
"""Of one request: vLLM's healthy traces show up to 4 (inference-sim#963); then it keeps its place."""


@dataclass(frozen=True, slots=True)
class Memory:
    """`pinned_bytes`: what of the prefix cache running rows stand on and cannot be evicted. `share`: of the
    operator's budget, what `budget_bytes` is, after an engine that ran out of memory."""

    budget_bytes: int
    row_bytes: RowBytes
    pinned_bytes: int
    share: float = 1.0

    def refusal(self, sequence: Sequence) -> str | None:
        """Why this request could never run here."""
        # Not what it has said already: a request that goes on was accepted once.
        prompt_tokens = len(sequence.tokens) - sequence.submit.done_tokens
        needed = self.row_bytes.held(prompt_tokens)
        # By the whole budget, under which it may have been accepted: alone it runs, whatever is left of that.
        if needed <= (whole_bytes := round(self.budget_bytes / self.share)):
            return None
        return (
            f"the prompt's {prompt_tokens} tokens need {needed} bytes of keys and values,"
            f" and there are {whole_bytes} (--kv-cache-bytes)"
        )

    def room_bytes(self, running: Iterable[Sequence]) -> int:
        """What these leave of the budget; below 0 where they have grown beyond it."""
        held = sum(charged_bytes(row, self.row_bytes) for row in running)
        return self.budget_bytes - self.pinned_bytes - held

    def fits(
        self,
        sequence: Sequence,
        known_tokens: int,
        running: Collection[Sequence],
        room_bytes: int | None = None,
    ) -> bool:
        """Whether a request of which so much is kept may join these. It leaves in place what one of them
        begins with, too; other kept tokens it copies. `room_bytes`: of these, where it is known already, as
        where one after another is asked about."""
        if not running:
            return True  # It has been found possible; what else is held will be evicted.
        coming = self.coming_bytes(sequence, known_tokens, running)
        return coming <= (self.room_bytes(running) if room_bytes is None else room_bytes)

    def coming_bytes(self, sequence: Sequence, known_tokens: int, running: Iterable[Sequence]) -> int:
        """What it takes of the room: its own charge, and what is pinned for it and for nobody before it."""
        in_place = pinned = 0
        for row in running:
            shared = min(known_tokens, sequence.shared_with(row))
            in_place, pinned = max(in_place, shared), max(pinned, min(shared, row.in_place_tokens))
        own = _charge(sequence, in_place, self.row_bytes)
        return own + (in_place - pinned) * (self.row_bytes.token_bytes + KEY_BYTES)

    def victim(self, running: Iterable[Sequence]) -> Sequence | None:
        """Who gives way now, if anyone must: the fewest tokens said, so that the least is computed again."""
        rows = list(running)
        if len(rows) < 2 or self.room_bytes(rows) >= 0:
            return None
        movable = [row for row in rows if row.preemptions < MOST_PREEMPTIONS]
        return min(movable, key=lambda row: (row.generated_tokens, -row.request_id), default=None)


def left_in_place(sequence: Sequence, known_tokens: int, rows: Iterable[Sequence]) -> int:
    """What a request will probably attend to in place beside these rows, of what is kept of it."""
    return min(known_tokens, max((sequence.shared_with(row) for row in rows), default=0))


def charged_bytes(sequence: Sequence, row_bytes: RowBytes) -> int:
    """What a running row holds for itself, with its reserve."""
    return _charge(sequence, sequence.in_place_tokens, row_bytes)


def _charge(sequence: Sequence, in_place_tokens: int, row_bytes: RowBytes) -> int:
    still = min(sequence.submit.max_tokens - sequence.submit.done_tokens, GROWTH_TOKENS)
    answer = max(still, sequence.generated_tokens - sequence.submit.done_tokens + 1)
    return row_bytes.held(len(sequence.tokens) + answer, in_place_tokens)
