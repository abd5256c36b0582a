"""From logits to tokens, all rows in one pass, and each row as if it were alone.

Random numbers are keyed by (seed, position), not drawn from a stream: the same request gives the same tokens
alone, among 31 others, and when it is computed again from the middle. Every operation works row by row, so
neighbours and their order change nothing.

The cut-offs are mlx-lm's (top-p, min-p and top-k, on the untempered distribution), but found without a sort:
each keeps the most likely tokens down to some log-probability, so one bisection over that threshold serves
them all. Tokens of exactly equal probability at the threshold are all kept, where mlx-lm drops some.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

import mlx.core as mx

from scheduler.engine.constraint import Constraint, allowed_tokens, hold_ends
from scheduler.engine.held_ends import HeldEnds
from scheduler.engine.logprobs import LogprobsAsked
from scheduler.engine.rows.softmax import weight
from scheduler.link.messages import Sampling

_MASK_64 = (1 << 64) - 1
_MASK_32 = (1 << 32) - 1
_SPAN = 32.0
"""Below the best token's log-probability; what lies deeper has no weight in float32's sum."""
_BISECTIONS = 25
"""Of the span: to 1e-6, the resolution of a log-probability in float32."""
_NEVER = -math.inf


def position_key(seed: int, position: int) -> int:
    """A 64-bit key for one draw: SplitMix64's finaliser (Steele, Lea, Flood 2014) over both numbers."""
    x = (seed * 0x9E3779B97F4A7C15 + position * 0xD1B54A32D192ED03 + 0x632BE59BD9B4E019) & _MASK_64
    x = ((x ^ (x >> 30)) * 0xBF58476D1CE4E5B9) & _MASK_64
    x = ((x ^ (x >> 27)) * 0x94D049BB133111EB) & _MASK_64
    return x ^ (x >> 31)


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
    seen: mx.array | None = field(init=False, default=None)
    """(vocabulary,) float32: 1 for each token of prompt or output."""
    counts: mx.array | None = field(init=False, default=None)
    """(vocabulary,) float32: how often each token is in the output."""

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
        if self.penalised:
            float(params.repetition_penalty + params.presence_penalty + params.frequency_penalty)
            self.counts = _counted(self.output, self.vocabulary)
            self.seen = mx.minimum(_counted(self.prompt, self.vocabulary) + self.counts, 1.0)

    @property
    def penalised(self) -> bool:
        params = self.params
        return bool(params.repetition_penalty != 1.0 or params.presence_penalty or params.frequency_penalty)

    @property
    def sampled(self) -> bool:
        return self.params.temperature > 0

    @property
    def cut(self) -> bool:
        params = self.params
        return self.sampled and bool(
            0.0 < params.top_p < 1.0 or params.min_p > 0.0 or 0 < params.top_k < self.vocabulary
        )


def _counted(tokens: Sequence[int], vocabulary: int) -> mx.array:
    counts = mx.zeros((vocabulary,), mx.float32)
    return counts.at[mx.array(list(tokens))].add(1.0) if tokens else counts


def _column(values: Sequence[float]) -> mx.array:
    return mx.array(list(values), dtype=mx.float32)[:, None]


class RowsSampler:
    """The rows of one batch, their parameters side by side. Made anew when rows join or leave; `leave`
    gives the rows their counts back."""

    def __init__(self, rows: Sequence[RowSampling]) -> None:
        self.rows = tuple(rows)
        self._penalised = _Penalised([(i, row) for i, row in enumerate(rows) if row.penalised])
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
        self._heat = _column([1.0 / row.params.temperature for row in self._sampled])
        cut = [i for i, row in enumerate(self._sampled) if row.cut]
        self._cut = mx.array(cut) if 0 < len(cut) < len(self._sampled) else None
        self._cuts = _Cuts([self._sampled[i] for i in cut]) if cut else None

    def leave(self) -> None:
        self._penalised.save()

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
        if self._biased is not None and self._bias is not None:
            logits = logits.astype(mx.float32).at[self._biased].add(self._bias)
        logits = self._held_ends.apply(self._penalised.apply(logits, inputs))
        logits = self._constrained.apply(logits)
        tokens = mx.argmax(logits, axis=-1).astype(mx.uint32)
        if self._sampled:
            chosen = logits if self._drawn is None else logits[self._drawn]
            drawn = self._draw(chosen.astype(mx.float32))
            tokens = drawn if self._drawn is None else _put(tokens, self._drawn, drawn)
        for row in self.rows:
            row.position += 1
        return tokens

    def _draw(self, logits: mx.array) -> mx.array:
        scores = logits * self._heat
        if self._cuts is not None:
            chosen = logits if self._cut is None else logits[self._cut]
            floor = self._cuts.floor(chosen)
            kept = mx.where(chosen >= floor, scores if self._cut is None else scores[self._cut], _NEVER)
            scores = kept if self._cut is None else _put(scores, self._cut, kept)
        keys = [position_key(row.params.seed, row.position) for row in self._sampled]
        pairs = mx.array([(key >> 32, key & _MASK_32) for key in keys], dtype=mx.uint32)
        noise = mx.vmap(lambda key: mx.random.gumbel((scores.shape[-1],), key=key))(pairs)
        return mx.argmax(scores + noise, axis=-1).astype(mx.uint32)


def _put(array: mx.array, index: mx.array, values: mx.array) -> mx.array:
    """A copy of `array` with rows replaced."""
    array = array[:]
    array[index] = values
    return array


class _Cuts:
    """Top-p, min-p and top-k of some rows, as one threshold each."""

    def __init__(self, rows: Sequence[RowSampling]) -> None:
        vocabulary = rows[0].vocabulary
        params = [row.params for row in rows]
        # What never cuts: more tokens than there are, more mass than there is.
        self._most = _column([p.top_k if 0 < p.top_k < vocabulary else vocabulary + 1 for p in params])
        self._mass = _column([p.top_p if 0.0 < p.top_p < 1.0 else 2.0 for p in params])
        self._least = _column([math.log(min(p.min_p, 1.0)) if p.min_p > 0.0 else _NEVER for p in params])
        self._bisected = any(0 < p.top_k < vocabulary or 0.0 < p.top_p < 1.0 for p in params)

    def floor(self, logits: mx.array) -> mx.array:
        """The least logit that is kept, (rows, 1): the deepest prefix of the order that reaches `top_k`
        tokens or `top_p` of the mass ends there."""
        best = mx.max(logits, axis=-1, keepdims=True)
        floor = best + self._least
        if not self._bisected:
            return floor
        weights = weight(logits - best)
        wanted = self._mass * mx.sum(weights, axis=-1, keepdims=True)
        low, high = best - _SPAN, best
        for _ in range(_BISECTIONS):
            middle = (low + high) * 0.5
            inside = logits >= middle
            mass = mx.sum(mx.where(inside, weights, 0.0), axis=-1, keepdims=True)
            count = mx.sum(inside, axis=-1, keepdims=True)
            reached = (count >= self._most) | (mass >= wanted)
            low, high = mx.where(reached, middle, low), mx.where(reached, high, middle)
        # Never reached: everything is kept, also what lies below the span.
        return mx.maximum(floor, mx.where(low > best - _SPAN, low, _NEVER))


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
            # The first input of a row is its prompt's last token, or what `output` ends with: known already.
            if row.position > len(row.output):
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
        return _put(logits, self._index, mx.where(self._allowed, logits[self._index], _NEVER))


class _Penalised:
    """Penalties of some rows, in vLLM's arithmetic: the repetition penalty divides positive and multiplies
    negative logits of every token in prompt or output; frequency and presence subtract by the output's."""

    def __init__(self, rows: Sequence[tuple[int, RowSampling]]) -> None:
        self._rows = [row for _, row in rows]
        if not rows:
            return
        self._index = mx.array([i for i, _ in rows])
        self._order = mx.arange(len(rows))
        self._repetition = _column([row.params.repetition_penalty for row in self._rows])
        self._presence = _column([row.params.presence_penalty for row in self._rows])
        self._frequency = _column([row.params.frequency_penalty for row in self._rows])
        self._counts = mx.stack([row.counts for row in self._rows if row.counts is not None])
        self._seen = mx.stack([row.seen for row in self._rows if row.seen is not None])

    def save(self) -> None:
        for i, row in enumerate(self._rows):
            row.counts, row.seen = self._counts[i], self._seen[i]

    def apply(self, logits: mx.array, inputs: mx.array) -> mx.array:
        if not self._rows:
            return logits
        # The first input of a row is its prompt's last token, which is counted already as such.
        is_output = _column([float(row.position > len(row.output)) for row in self._rows])[:, 0]
        inputs = inputs[self._index]
        self._counts = self._counts.at[self._order, inputs].add(is_output)
        self._seen = mx.maximum(self._seen, mx.minimum(self._counts, 1.0))
        chosen = logits[self._index].astype(mx.float32)
        repeated = mx.where(chosen > 0, chosen / self._repetition, chosen * self._repetition)
        chosen = mx.where(self._seen > 0, repeated, chosen)
        chosen = chosen - self._frequency * self._counts - self._presence * (self._counts > 0)
        return _put(logits, self._index, chosen.astype(logits.dtype))
