"""The rows of a batch that have a thinking budget: when it forces a token, and what it masks.

A step is submitted before the host knows the token that it follows, so a limit knows all but that one. Only
where the missing token could matter does the draw wait for it (`may_force`): near the end of the budget,
within a forced mark, and where reasoning may begin with next to no budget. What is masked after the end is
decided without it: where it depends on the missing token, the graph compares.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

import mlx.core as mx

from scheduler.engine.mlx.sampling.chooser import Chosen
from scheduler.engine.mlx.sampling.row_arrays import put
from scheduler.engine.mlx.sampling.row_sampling import RowSampling
from scheduler.shared.thinking import ThinkingLimit

_NEVER = -math.inf
_ANY = -1
"""Stands for every token: ids are not negative."""


class ThinkingRows:
    """The budgets of a batch's rows. Rebuilt when rows join or leave. Without rows that have a budget nothing
    is computed."""

    def __init__(self, rows: Sequence[RowSampling]) -> None:
        self._rows = [
            (place, row, row.thinking) for place, row in enumerate(rows) if row.thinking is not None
        ]
        self._held: list[tuple[int, int, int]] = []
        self._places = self._tokens = self._after = mx.array([])

    @property
    def may_force(self) -> bool:
        """Return whether `advance` must come before the next draw."""
        return any(limit.may_act_after(_unknown(row, limit)) for _, row, limit in self._rows)

    def advance(self, inputs: Sequence[int]) -> None:
        """Advance the limits by `inputs`: the tokens that the next draw follows, of which all but the first
        of a row are output."""
        for place, row, limit in self._rows:
            if row.has_output:
                limit.accept_at(row.position - 1, inputs[place])

    def mask(self, logits: mx.array, inputs: mx.array) -> mx.array:
        """Return the (rows, vocabulary) logits without the tokens that would begin reasoning anew. Rows with
        a grammar are masked with it, on the host."""
        held = [
            (place, found.token, _ANY if found.after is None else found.after)
            for place, row, limit in self._rows
            if row.constraint is None and (found := limit.held(_unknown(row, limit))) is not None
        ]
        if not held:
            return logits
        if held != self._held:
            self._held = held
            self._places, self._tokens, self._after = (
                mx.array(list(column)) for column in zip(*held, strict=True)
            )
        follows = (self._after == _ANY) | (inputs[self._places] == self._after)
        logits = logits[:]
        logits[self._places, self._tokens] = mx.where(follows, _NEVER, logits[self._places, self._tokens])
        return logits

    def force(self, chosen: Chosen) -> Chosen:
        """Return the choice with the forced tokens in place. A row whose logits are NaN fails all the same;
        that all tokens were masked does not matter here."""
        forced = [
            (place, token)
            for place, row, limit in self._rows
            if not _unknown(row, limit) and (token := limit.forced) is not None
        ]
        if not forced:
            return chosen
        places = mx.array([place for place, _ in forced])
        tokens = mx.array([token for _, token in forced], dtype=mx.uint32)
        scores = chosen.scores[places]
        return replace(
            chosen,
            tokens=put(chosen.tokens, places, tokens),
            scores=put(chosen.scores, places, mx.where(mx.isnan(scores), scores, 0.0)),
        )


def _unknown(row: RowSampling, limit: ThinkingLimit) -> int:
    """Return how many tokens before the next one the limit has not seen: 1 where a step is ahead, else 0."""
    return row.position - limit.seen
