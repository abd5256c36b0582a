"""From logits to tokens, all rows in one pass, and each row as if it were alone.

Every operation works row by row, so neighbours and their order change nothing. The order is: bias, penalties
(`penalties.py`), ends that may not come yet (`held_ends.py`), grammars, and then the best token or a draw
(`draw.py`).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

import mlx.core as mx

from scheduler.engine.constraint import Constraint, allowed_tokens, hold_ends
from scheduler.engine.draw import Draw, HostDraw, cuts, gumbel, host_gumbel, put
from scheduler.engine.held_ends import HeldEnds
from scheduler.engine.logprobs import LogprobsAsked
from scheduler.engine.penalties import HostPenalties, Penalties, TokenCounts, penalises
from scheduler.engine.rows.softmax import EXP_IS_SLOW
from scheduler.link.messages import Sampling

_NEVER = -math.inf


@dataclass(slots=True, eq=False)
class RowSampling:
    """How one row's tokens are chosen, and where it stands; penalties count `prompt` and `output`."""

    params: Sampling
    vocabulary: int
    prompt: Sequence[int]
    output: Sequence[int] = ()
    position: int = 0
    top_logprobs: int | None = None
    min_tokens: int = 0
    stop_token_ids: Sequence[int] = ()
    """What cannot be chosen before `min_tokens` are, but where the grammar allows no other."""
    constraint: Constraint | None = None
    """The grammar that the answer is held to, as far as `output` goes."""
    bias: mx.array | None = field(init=False, default=None)
    said: TokenCounts | None = field(init=False, default=None)
    """For penalties, if there are any."""

    def __post_init__(self) -> None:
        """Raises whatever is wrong with the parameters, before the row is anybody's neighbour."""
        params = self.params
        for value in (
            params.temperature,
            params.top_p,
            params.min_p,
            params.top_k,
            params.repetition_penalty,
        ):
            float(value)
        if params.logit_bias:
            ids = mx.array([token for token, _ in params.logit_bias])
            values = mx.array([float(bias) for _, bias in params.logit_bias], dtype=mx.float32)
            self.bias = mx.zeros((self.vocabulary,), mx.float32).at[ids].add(values)
        if penalises(params):
            float(params.repetition_penalty + params.presence_penalty + params.frequency_penalty)
            self.said = TokenCounts.of(self.prompt, self.output, self.vocabulary)

    @property
    def sampled(self) -> bool:
        return self.params.temperature > 0

    @property
    def has_said(self) -> bool:
        """Whether the row's input is new: its first is its prompt's last token, or the last of `output`."""
        return self.position > len(self.output)


class RowsSampler:
    """The rows of one batch, their parameters side by side. Made anew when rows join or leave; `leave`
    gives the rows their counts back."""

    def __init__(self, rows: Sequence[RowSampling], on_host: bool = EXP_IS_SLOW) -> None:
        """`on_host`: let NumPy do what MLX is slow at. What needs the logits stops the device's pipeline, so
        rows without penalties and cut-offs stay in the graph but for their random numbers."""
        self.rows = tuple(rows)
        self._said = [row for row in rows if row.said is not None]
        penalised = [(i, row.params, row.said) for i, row in enumerate(rows) if row.said is not None]
        penalties = HostPenalties if on_host else Penalties
        self._penalties = penalties(penalised) if penalised else None
        self._constrained = _Constrained([(i, row) for i, row in enumerate(rows) if row.constraint])
        biased = [(i, row.bias) for i, row in enumerate(rows) if row.bias is not None]
        self._held_ends = HeldEnds(
            [
                # With a grammar, which may allow nothing but an end, its mask sees to it.
                (0 if row.constraint else row.min_tokens - row.position, row.stop_token_ids)
                for row in rows
            ]
        )
        self.logprobs = LogprobsAsked([row.top_logprobs for row in rows])
        self._biased = mx.array([i for i, _ in biased]) if biased else None
        self._bias = mx.stack([bias for _, bias in biased]) if biased else None
        sampled = [(i, row) for i, row in enumerate(rows) if row.sampled]
        self._sampled = [row for _, row in sampled]
        self._drawn = mx.array([i for i, _ in sampled]) if 0 < len(sampled) < len(rows) else None
        vocabulary = rows[0].vocabulary if rows else 0
        cut = any(cuts(row.params, vocabulary) for row in self._sampled)
        draw, noise = HostDraw if on_host and cut else Draw, host_gumbel if on_host else gumbel
        self._draw = draw([row.params for row in self._sampled], vocabulary, noise) if sampled else None
        self.draws_on_host = on_host and (cut or bool(penalised))
        """Whether a call waits for the logits."""

    def leave(self) -> None:
        if self._penalties is not None:
            self._penalties.save()

    @property
    def constrained(self) -> bool:
        """Whether `advance` must come before the next call: some rows are held to a grammar."""
        return bool(self._constrained)

    def advance(self, inputs: Sequence[int]) -> None:
        """Tell the grammars which tokens the next call's logits follow."""
        self._constrained.advance(inputs)

    def __call__(self, logits: mx.array, inputs: mx.array) -> mx.array:
        """One token a row. `logits`: (rows, vocabulary); `inputs`: the tokens that they follow, of which
        all but the first of a row are its output. Where rows are `constrained`, after `advance`."""
        noise = None if self._draw is None else self._draw.noise([row.position for row in self._sampled])
        if self._biased is not None and self._bias is not None:
            logits = logits.astype(mx.float32).at[self._biased].add(self._bias)
        if self._penalties is not None:
            logits = self._penalties.apply(logits, inputs, [row.has_said for row in self._said])
        logits = self._constrained.apply(self._held_ends.apply(logits))
        tokens = mx.argmax(logits, axis=-1).astype(mx.uint32)
        if self._draw is not None and noise is not None:
            chosen = logits if self._drawn is None else logits[self._drawn]
            drawn = self._draw(chosen.astype(mx.float32), noise)
            tokens = drawn if self._drawn is None else put(tokens, self._drawn, drawn)
        for row in self.rows:
            row.position += 1
        return tokens


class _Constrained:
    """The grammars of some rows, as one mask. Last of all that changes logits: nothing may undo it."""

    def __init__(self, rows: Sequence[tuple[int, RowSampling]]) -> None:
        self._rows = rows
        self._index = mx.array([i for i, _ in rows]) if rows else None
        self._allowed: mx.array | None = None

    def __bool__(self) -> bool:
        return bool(self._rows)

    def advance(self, inputs: Sequence[int]) -> None:
        for i, row in self._rows:
            assert row.constraint is not None
            if row.has_said:
                row.constraint.accept(inputs[i])
        constraints = [row.constraint for _, row in self._rows if row.constraint is not None]
        allowed = allowed_tokens(constraints, self._rows[0][1].vocabulary)
        for mask, (_, row) in zip(allowed, self._rows, strict=True):
            if row.position < row.min_tokens:
                hold_ends(mask, row.stop_token_ids)
        self._allowed = mx.array(allowed)

    def apply(self, logits: mx.array) -> mx.array:
        if self._index is None:
            return logits
        assert self._allowed is not None, "a draw before its mask"
        if len(self._rows) == logits.shape[0]:
            return mx.where(self._allowed, logits, _NEVER)
        return put(logits, self._index, mx.where(self._allowed, logits[self._index], _NEVER))
