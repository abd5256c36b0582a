"""Which prompts are prefilled in one batch: pure functions.

Rows of one batch are padded to the longest of them: their attention and their arrays are as long as its own.
Beside a prompt of which 20,000 tokens are computed, a question of 300 tokens would take the time and the
memory of 20,000. So prompts of very different lengths are in different batches, and a step computes one of
them: that with the shortest remaining prompt, but each has its turn after a bounded number of steps.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

from scheduler.engine.sequence import EngineSequence

MOST_PADDING_TOKENS = 2048
"""Padding of a row that costs less than a further batch, which takes steps of its own. A longer row may be
padded to twice its length."""
MOST_BATCHES = 4
MOST_STEPS = 2
"""How many steps in a row may pass a batch: beside short prompts a long one then has a third of the steps."""


@dataclass(frozen=True, slots=True)
class BegunBatch:
    """Rows in the middle of their prefill that are computed together, by request id. `passed_steps`: the
    steps with chunks since it was computed last."""

    rows: frozenset[int]
    passed_steps: int = 0


Begun: TypeAlias = Sequence[BegunBatch]


def rows_of(begun: Begun) -> frozenset[int]:
    """Return the rows of all batches."""
    return frozenset[int]().union(*(batch.rows for batch in begun))


def members_of(begun: Begun, rows: Iterable[EngineSequence]) -> list[list[EngineSequence]]:
    """Return each batch's rows."""
    by_number = {row.request_id: row for row in rows}
    return [[by_number[one] for one in sorted(batch.rows) if one in by_number] for batch in begun]


def own_tokens(row: EngineSequence) -> int:
    """Return the tokens that the row holds for itself, or copies when it joins."""
    return row.computed_tokens - row.in_place_tokens


@dataclass(slots=True)
class NextBatch:
    """The batch of a step with chunks. `begun`: its rows in the middle of their prefill, none in a new batch.
    `coming`: prompts that may join them."""

    begun: list[EngineSequence]
    coming: list[EngineSequence] = field(default_factory=list)
    passed_steps: int = MOST_STEPS
    _lengths: list[int] = field(init=False)
    """The least and the most tokens of a row, so that who may join is not compared with each."""

    def __post_init__(self) -> None:
        own = [own_tokens(row) for row in self.rows]
        self._lengths = [min(own), max(own)] if own else []

    def join(self, row: EngineSequence) -> None:
        self.coming.append(row)
        lengths = [*self._lengths, own_tokens(row)]
        self._lengths = [min(lengths), max(lengths)]

    @property
    def rows(self) -> list[EngineSequence]:
        return [*self.begun, *self.coming]

    def padding_with(self, row: EngineSequence) -> int:
        """Return by how much the shortest row would be padded."""
        lengths = (*self._lengths, own_tokens(row))
        return max(lengths) - min(lengths)

    def takes(self, row: EngineSequence) -> bool:
        shortest = min(*self._lengths[:1], own_tokens(row)) if self._lengths else own_tokens(row)
        return self.padding_with(row) <= max(MOST_PADDING_TOKENS, shortest)

    @property
    def _place(self) -> tuple[bool, int, bool, int]:
        """Return its place in line: those passed long enough first, the longest ago and a new one last, then
        the one with the shortest remaining prompt."""
        shortest = min(row.chunkable_tokens for row in self.rows)
        passed = self.passed_steps >= MOST_STEPS
        return not passed, -self.passed_steps if passed else 0, passed and not self.begun, shortest


def next_batch(prompts: Iterable[EngineSequence], begun: Begun, most_rows: int) -> NextBatch:
    """Return the batch whose turn it is; without prompts it is empty. `prompts` have tokens left to compute
    in chunks, and `most_rows` may be computed together: if that is 1, there is one batch."""
    known = list(prompts)
    found = [
        NextBatch(rows, passed_steps=batch.passed_steps)
        for batch, rows in zip(begun, members_of(begun, known), strict=True)
        if rows
    ]
    joined = rows_of(begun)
    most_batches = 1 if most_rows == 1 else MOST_BATCHES
    for row in known:
        if row.request_id in joined:
            continue
        best = min(found, key=lambda one: one.padding_with(row), default=None)
        if best is None or (len(found) < most_batches and not best.takes(row)):
            best = NextBatch([])
            found.append(best)
        best.join(row)
    return min(found, key=lambda one: one._place, default=NextBatch([]))
