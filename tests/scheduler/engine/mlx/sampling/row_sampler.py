"""A row-by-row implementation of sampling, the reference for the vectorised one: mlx-lm's cut-offs of the
tempered distribution, vLLM's penalties.

It was once the engine's own; now it is the oracle: other code for the same definitions.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import mlx.core as mx
from mlx_lm.sample_utils import apply_min_p, apply_top_k, apply_top_p

from scheduler.engine.mlx.device import device
from scheduler.engine.mlx.sampling.draw import Noise, gumbel, position_key
from scheduler.engine.mlx.sampling.host_chooser import host_gumbel
from scheduler.shared.messages import Sampling


@contextmanager
def uncompiled() -> Iterator[None]:
    """On MLX's CPU, mlx-lm's samplers call a C++ compiler for each value of a cut-off: seconds each."""
    mx.disable_compile()
    try:
        yield
    finally:
        mx.enable_compile()


def tempered(logprobs: mx.array, temperature: float) -> mx.array:
    """The log-probabilities at a temperature."""
    scores = logprobs * (1.0 / temperature)
    return scores - mx.logsumexp(scores, axis=-1, keepdims=True)


class RowSampler:
    """Samples one row. Called once a position with (1, vocabulary) log-probabilities, in order."""

    def __init__(self, params: Sampling, position: int = 0, noise: Noise | None = None) -> None:
        """The default `noise` is made as the engine makes it here."""
        self._params = params
        self._position = position
        self._noise = noise or (host_gumbel if device().traits.exp_is_slow else gumbel)

    def __call__(self, logprobs: mx.array) -> mx.array:
        return mx.argmax(self.scores(logprobs), axis=-1)

    def scores(self, logprobs: mx.array) -> mx.array:
        """Return what the draw compares at the next position: minus infinity for what a cut-off drops."""
        params, position = self._params, self._position
        self._position += 1
        scores = logprobs * (1.0 / params.temperature)
        kept = tempered(logprobs, params.temperature)
        with uncompiled():
            if 0.0 < params.top_p < 1.0:
                kept = apply_top_p(kept, params.top_p)
            if params.min_p > 0.0:
                kept = apply_min_p(kept, params.min_p)
            if 0 < params.top_k < logprobs.shape[-1]:
                kept = apply_top_k(kept, params.top_k)
        # One draw from the distribution, by the Gumbel-max rule.
        scores = mx.where(mx.isinf(kept), -mx.inf, scores)
        noise = self._noise([position_key(params.seed, position)], scores.size)
        return scores + noise.reshape(scores.shape)


class LogitsAdjustment:
    """Bias and penalties of one row: (tokens so far, logits (1, vocabulary)) to new logits.

    vLLM's arithmetic: the repetition penalty divides positive and multiplies negative logits of
    every token in prompt or output; frequency and presence subtract by the output's counts.
    """

    def __init__(self, params: Sampling, prompt_tokens: int, vocabulary: int) -> None:
        self._params = params
        self._prompt_tokens = prompt_tokens
        self._bias = mx.zeros((vocabulary,), dtype=mx.float32)
        for token, value in params.logit_bias:
            self._bias[token] += value

    @staticmethod
    def wanted(params: Sampling) -> bool:
        return bool(
            params.logit_bias
            or params.repetition_penalty != 1.0
            or params.presence_penalty
            or params.frequency_penalty
        )

    def __call__(self, tokens: mx.array, logits: mx.array) -> mx.array:
        params = self._params
        adjusted = logits.astype(mx.float32) + self._bias
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
        return adjusted


def _counts(tokens: mx.array, vocabulary: int) -> mx.array:
    """How often each id occurs in `tokens`; (vocabulary,), float32."""
    counts = mx.zeros((vocabulary,), dtype=mx.float32)
    return counts.at[tokens].add(1.0) if tokens.size else counts
