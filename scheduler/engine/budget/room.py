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

from collections.abc import Collection, Container, Sequence
from dataclasses import dataclass

from scheduler.engine.budget.learned import ChunkPeak
from scheduler.engine.planning.prefill_batches import Begun, members_of, own_tokens, rows_of
from scheduler.engine.sequence import EngineSequence
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
        reading: Sequence[Collection[EngineSequence]],
        decoding: Collection[EngineSequence],
        whole: Collection[EngineSequence],
        begun: Container[int],
        resting: Sequence[Collection[EngineSequence]] = (),
    ) -> int:
        """Return what a step with these rows takes at most, without the chunk's activations. `reading`: the
        prefill batches that it computes, `resting`: those that it does not. `whole`: prompts that may be
        complete after it. `begun`: those that have joined."""
        ended = [own_tokens(row) + row.chunkable_tokens for row in whole]
        answers = [own_tokens(row) for row in decoding]
        kept = sum(ended) + sum(answers)
        # A prompt that is whole was put in place before it joins those that decode.
        writing = self.row_bytes.batch(answers + ([0] * len(ended) if self.saving else ended), 1)
        arrays = writing + sum(self._arrays(batch, grows=True) for batch in reading)
        held = self.held_bytes - sum(self._arrays(batch, grows=False) for batch in resting)
        grown = max(0, arrays - max(0, held))
        # A lone prompt appends in place; when a decoding row ends, the last row is copied into its slot.
        joining = any(row.request_id not in begun for batch in reading for row in batch)
        moving = grown or whole or joining or any(len(batch) > 1 for batch in reading)
        copied = max(arrays, held) if moving else writing
        return grown + int(self.copied_part * copied) + kept * (self.row_bytes.token_bytes + KEY_BYTES)

    def _arrays(self, batch: Collection[EngineSequence], grows: bool) -> int:
        """Return the most bytes of a prefill batch: `grows`, to the ends of its prompts."""
        coming = max((row.chunkable_tokens for row in batch), default=0) if grows else 0
        return self.row_bytes.batch([own_tokens(row) for row in batch], coming)

    def for_admission(self, rows: Collection[EngineSequence], begun: Begun) -> int:
        """Return the bytes left for new sequences; rows admitted but not started are charged their whole
        prompt."""
        joined = rows_of(begun)
        prompts = [row for row in rows if row.request_id in joined]
        coming = [row for row in rows if row.prefilling and row.request_id not in joined]
        decoding = [row for row in rows if not row.prefilling]
        taken = self.taken_bytes(members_of(begun, rows), decoding, prompts, joined)
        taken += sum(self.row_bytes.held(row.prompt_tokens, row.in_place_tokens) for row in coming)
        return self.room_bytes - taken
