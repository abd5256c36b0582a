"""What a step takes of memory beyond what is held before it, and whether that fits: plain arithmetic.

Measurements cannot predict a step that is larger than all before it, and such a step kills: sixteen agents
ask their second turns at once, and their rows join behind copied prefixes. So what is made of arrays is
counted before a row is admitted and before it joins the batch:

    arrays     of the rows in prefill and of those that decode, padded to the longest, with spare places
    copies     the arrays that these replace, where rows join, leave or outgrow them, until all are written
    prefixes   the copies for the prefix cache of rows that end, and of prompts that become whole
    the chunk  activations, as learned (`learned.py`)
"""

from __future__ import annotations

from collections.abc import Collection, Container
from dataclasses import dataclass

from scheduler.engine.budget.learned import ChunkPeak
from scheduler.engine.sequence import Sequence
from scheduler.shared.row_bytes import RowBytes
from scheduler.shared.token_ids import KEY_BYTES


@dataclass(frozen=True, slots=True)
class StepRoom:
    """`room_bytes`: what the step may take, with what can be evicted for it. `held_bytes`: the arrays of all
    rows. `copied_part`: of the arrays, what was copied at a time in the worst step."""

    room_bytes: int
    held_bytes: int
    copied_part: float
    row_bytes: RowBytes
    peak: ChunkPeak
    saving: bool = False
    """Memory-saving mode: never copy a cached prefix, even where a copy would be faster."""

    def taken_bytes(
        self,
        prompts: Collection[Sequence],
        decoding: Collection[Sequence],
        whole: Collection[Sequence],
        begun: Container[int],
    ) -> int:
        """Return what a step with these rows in its batches takes at most, without the chunk's activations.
        `whole`: prompts that may be complete after it. `begun`: those that have joined."""
        coming = max((row.chunkable_tokens for row in prompts), default=0)
        ended = [_own_tokens(row) + row.chunkable_tokens for row in whole]
        answers = [_own_tokens(row) for row in decoding]
        kept = sum(ended) + sum(answers)
        reading = self.row_bytes.batch([_own_tokens(row) for row in prompts], coming)
        # A prompt that is whole was put in place before it joins those that decode.
        writing = self.row_bytes.batch(answers + ([0] * len(ended) if self.saving else ended), 1)
        grown = max(0, reading + writing - self.held_bytes)
        # A lone prompt appends in place; when a decoding row ends, the last row is copied into its slot.
        moving = grown or whole or len(prompts) > 1 or any(row.request_id not in begun for row in prompts)
        copied = max(reading + writing, self.held_bytes) if moving else writing
        return grown + int(self.copied_part * copied) + kept * (self.row_bytes.token_bytes + KEY_BYTES)

    def for_admission(self, rows: Collection[Sequence], begun: Container[int]) -> int:
        """Return the bytes left for new sequences; rows admitted but not started are charged their whole
        prompt."""
        prompts = [row for row in rows if row.request_id in begun]
        coming = [row for row in rows if row.prefilling and row.request_id not in begun]
        taken = self.taken_bytes(prompts, [row for row in rows if not row.prefilling], prompts, begun)
        taken += sum(self.row_bytes.held(row.prompt_tokens, row.in_place_tokens) for row in coming)
        return self.room_bytes - taken


def _own_tokens(row: Sequence) -> int:
    """Return the tokens that the row holds for itself, or copies when it joins."""
    return row.computed_tokens - row.in_place_tokens
