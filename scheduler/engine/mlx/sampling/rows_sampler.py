"""Choose tokens from logits, all rows in one pass, and each row as if it were alone.

Every operation works row by row, so neighbours and their order change nothing. The order is: bias, the mask
of stop tokens (`min_tokens`), that of reasoning's opening mark, grammars, then penalties and the argmax or a
draw (`draw.py`, `host_chooser.py`), which never choose a masked token. A token that the thinking
budget forces replaces what was chosen, so nothing outweighs it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import mlx.core as mx

from scheduler.engine.grammars.constraint import allowed_tokens, mask_stops
from scheduler.engine.mlx.sampling.chooser import Chosen
from scheduler.engine.mlx.sampling.draw import GraphChooser, gumbel
from scheduler.engine.mlx.sampling.host_chooser import HostChooser, host_gumbel
from scheduler.engine.mlx.sampling.logprobs import LogprobsRequested
from scheduler.engine.mlx.sampling.row_arrays import put
from scheduler.engine.mlx.sampling.row_sampling import RowSampling
from scheduler.engine.mlx.sampling.thinking_rows import ThinkingRows

_NEVER = -math.inf


class RowsSampler:
    """The rows of one batch, their parameters side by side. Rebuilt when rows join or leave; `leave`
    writes the token counts back to the rows."""

    def __init__(self, rows: Sequence[RowSampling]) -> None:
        self.rows = tuple(rows)
        self._constrained = _Constrained([(i, row) for i, row in enumerate(rows) if row.constraint])
        self._thinking = ThinkingRows(self.rows)
        biased = [(i, row.bias) for i, row in enumerate(rows) if row.bias is not None]
        self._min_tokens_mask = MinTokensMask(
            [
                # A row with a grammar is masked by its own constraint: the grammar may allow nothing but a
                # stop token.
                (0 if row.constraint else row.min_tokens - row.position, row.stop_token_ids)
                for row in rows
            ]
        )
        self.logprobs = LogprobsRequested([row.top_logprobs for row in rows])
        self._biased = mx.array([i for i, _ in biased]) if biased else None
        self._bias = mx.stack([bias for _, bias in biased]) if biased else None
        on_host = any(row.on_host for row in rows)
        self.draws_on_host = on_host and any(row.counts is not None or row.cuts for row in rows)
        """Whether a call waits for the logits, which stalls the device's pipeline: therefore rows without
        penalties and cut-offs stay in the graph, except for their random numbers."""
        self._chooser: GraphChooser | HostChooser
        if self.draws_on_host:
            self._chooser = HostChooser(self.rows)
        else:
            self._chooser = GraphChooser(self.rows, host_gumbel if on_host else gumbel)

    def leave(self) -> None:
        self._chooser.leave()

    @property
    def constrained(self) -> bool:
        """Return whether some rows are held to a grammar."""
        return bool(self._constrained)

    @property
    def needs_inputs(self) -> bool:
        """Return whether `advance` must come before the next call: for a grammar, or as a token may be
        forced."""
        return self.constrained or self._thinking.may_force

    def advance(self, inputs: Sequence[int]) -> None:
        """Advance thinking budgets and grammars by `inputs`, which the next call's logits follow."""
        self._thinking.advance(inputs)
        self._constrained.advance(inputs)

    def __call__(self, logits: mx.array, inputs: mx.array) -> Chosen:
        """Return one token a row. `logits`: (rows, vocabulary); `inputs`: the tokens that they follow, of
        which all but the first of a row are its output. Where it `needs_inputs`, call `advance` before."""
        # Always: in 16 bits penalties of 0.1 are lost in rounding, and a row's tokens would depend on whether
        # a neighbour's bias made all logits float32.
        logits = logits.astype(mx.float32)
        if self._biased is not None and self._bias is not None:
            logits = logits.at[self._biased].add(self._bias)
        logits = self._thinking.mask(self._min_tokens_mask.apply(logits), inputs)
        chosen = self._thinking.force(self._chooser(self._constrained.apply(logits), inputs))
        for row in self.rows:
            row.position += 1
        return chosen


class MinTokensMask:
    """`min_tokens`: masks the stop tokens of rows whose answer is still too short, as vLLM does. Rebuilt when
    rows join or leave.

    Rows with a grammar are masked on the host instead, which knows whether the grammar allows any other token
    (`grammars/constraint.py`). A batch without such rows costs nothing.
    """

    def __init__(self, rows: Sequence[tuple[int, Sequence[int]]]) -> None:
        """`rows`: for each row, how many more tokens must not be stop tokens, and its stop token ids."""
        self._masked = [
            (place, tokens, stops) for place, (tokens, stops) in enumerate(rows) if tokens > 0 and stops
        ]
        self._steps = 0
        self._index()

    def _index(self) -> None:
        pairs = [(place, stop) for place, _, stops in self._masked for stop in stops]
        self._places = mx.array([place for place, _ in pairs])
        self._stops = mx.array([stop for _, stop in pairs])

    def apply(self, logits: mx.array) -> mx.array:
        """Return the (rows, vocabulary) logits, masked. Each call counts as a step."""
        if not self._masked:
            return logits
        if any(tokens <= self._steps for _, tokens, _ in self._masked):
            self._masked = [entry for entry in self._masked if entry[1] > self._steps]
            self._index()
        self._steps += 1
        if not self._masked:
            return logits
        logits = logits[:]
        logits[self._places, self._stops] = _NEVER
        return logits


class _Constrained:
    """The grammars of some rows, as one mask. Applied after every other change of the logits, so that nothing
    undoes it."""

    def __init__(self, rows: Sequence[tuple[int, RowSampling]]) -> None:
        self._rows = rows
        self._index = mx.array([i for i, _ in rows]) if rows else None
        self._allowed: mx.array | None = None

    def __bool__(self) -> bool:
        return bool(self._rows)

    def advance(self, inputs: Sequence[int]) -> None:
        if not self._rows:
            return
        for i, row in self._rows:
            assert row.constraint is not None
            if row.has_output:
                row.constraint.accept_at(row.position - 1, inputs[i])
        constraints = [row.constraint for _, row in self._rows if row.constraint is not None]
        allowed = allowed_tokens(constraints, self._rows[0][1].vocabulary)
        for mask, (_, row) in zip(allowed, self._rows, strict=True):
            if row.position < row.min_tokens:
                mask_stops(mask, row.stop_token_ids)
            if row.thinking is not None and (held := row.thinking.held(0)) is not None:
                mask_stops(mask, [held.token])
        self._allowed = mx.array(allowed)

    def apply(self, logits: mx.array) -> mx.array:
        if self._index is None:
            return logits
        assert self._allowed is not None, "a draw before its mask"
        if len(self._rows) == logits.shape[0]:
            return mx.where(self._allowed, logits, _NEVER)
        return put(logits, self._index, mx.where(self._allowed, logits[self._index], _NEVER))
