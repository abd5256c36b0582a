"""From logits to a token, one request at a time, so that a request never depends on its neighbours.

Random numbers are keyed by (seed, position), not drawn from a stream: the same request gives the
same tokens alone, among 31 others, and when it is computed again from the middle. A failure in here
is caught and kept with its row; `mlx_backend` ends that row and no other.
"""

from __future__ import annotations

import mlx.core as mx
from mlx_lm.sample_utils import apply_min_p, apply_top_k, apply_top_p

from scheduler.link.messages import Sampling

_MASK_64 = (1 << 64) - 1


def position_key(seed: int, position: int) -> int:
    """A 64-bit key for one draw: SplitMix64's finaliser (Steele, Lea, Flood 2014) over both numbers."""
    x = (seed * 0x9E3779B97F4A7C15 + position * 0xD1B54A32D192ED03 + 0x632BE59BD9B4E019) & _MASK_64
    x = ((x ^ (x >> 30)) * 0xBF58476D1CE4E5B9) & _MASK_64
    x = ((x ^ (x >> 27)) * 0x94D049BB133111EB) & _MASK_64
    return x ^ (x >> 31)


def greedy(logprobs: mx.array) -> mx.array:
    """The sampler all greedy rows share: BatchGenerator then takes one argmax for the batch."""
    return mx.argmax(logprobs, axis=-1)


class RowSampler:
    """Samples one row. Called once a position with (1, vocabulary) log-probabilities, in order."""

    def __init__(self, params: Sampling, position: int = 0) -> None:
        self._params = params
        self._position = position
        self.failure: Exception | None = None

    def __call__(self, logprobs: mx.array) -> mx.array:
        position = self._position
        self._position += 1
        try:
            return self._sample(logprobs, position)
        except Exception as error:
            self.failure = error
            return greedy(logprobs)

    def _sample(self, logprobs: mx.array, position: int) -> mx.array:
        params = self._params
        if 0.0 < params.top_p < 1.0:
            logprobs = apply_top_p(logprobs, params.top_p)
        if params.min_p > 0.0:
            logprobs = apply_min_p(logprobs, params.min_p)
        if 0 < params.top_k < logprobs.shape[-1]:
            logprobs = apply_top_k(logprobs, params.top_k)
        key = mx.random.key(position_key(params.seed, position))
        return mx.random.categorical(logprobs * (1.0 / params.temperature), key=key)


class LogitsAdjustment:
    """Bias and penalties of one row: (tokens so far, logits (1, vocabulary)) to new logits.

    vLLM's arithmetic: the repetition penalty divides positive and multiplies negative logits of
    every token in prompt or output; frequency and presence subtract by the output's counts.
    """

    def __init__(self, params: Sampling, prompt_tokens: int, vocabulary: int) -> None:
        self._params = params
        self._prompt_tokens = prompt_tokens
        self._bias = _dense_bias(params.logit_bias, vocabulary) if params.logit_bias else None
        self.failure: Exception | None = None

    @staticmethod
    def wanted(params: Sampling) -> bool:
        return bool(
            params.logit_bias
            or params.repetition_penalty != 1.0
            or params.presence_penalty
            or params.frequency_penalty
        )

    def __call__(self, tokens: mx.array, logits: mx.array) -> mx.array:
        try:
            return self._adjust(tokens, logits)
        except Exception as error:
            self.failure = error
            return logits

    def _adjust(self, tokens: mx.array, logits: mx.array) -> mx.array:
        params = self._params
        dtype = logits.dtype
        adjusted = logits.astype(mx.float32)
        if self._bias is not None:
            adjusted = adjusted + self._bias
        if params.repetition_penalty != 1.0:
            seen = _counts(tokens, adjusted.shape[-1]) > 0
            penalised = mx.where(
                adjusted > 0, adjusted / params.repetition_penalty, adjusted * params.repetition_penalty
            )
            adjusted = mx.where(seen, penalised, adjusted)
        if params.frequency_penalty or params.presence_penalty:
            counts = _counts(tokens[self._prompt_tokens :], adjusted.shape[-1])
            adjusted = adjusted - params.frequency_penalty * counts
            adjusted = adjusted - params.presence_penalty * (counts > 0)
        return adjusted.astype(dtype)


def _dense_bias(logit_bias: tuple[tuple[int, float], ...], vocabulary: int) -> mx.array:
    indices = mx.array([token for token, _ in logit_bias])
    values = mx.array([value for _, value in logit_bias], dtype=mx.float32)
    return mx.zeros((vocabulary,), dtype=mx.float32).at[indices].add(values)


def _counts(tokens: mx.array, vocabulary: int) -> mx.array:
    """How often each id occurs in `tokens`; (vocabulary,), float32."""
    counts = mx.zeros((vocabulary,), dtype=mx.float32)
    return counts.at[tokens].add(1.0) if tokens.size else counts
