"""The rule by which a batch in 16-bit or quantised weights, or with packed keys and values, is held to the
model alone.

Products of another shape and attention in other pieces round otherwise, so tokens and log-probabilities may
differ, but not by more than rounding does to this model:

    E  the model's rounding error: the root mean square, over the answers to CALIBRATION, of the difference
       between the natural logarithms of a token's probability in this type and in float32 with the same
       weights, both by the model alone. At least half a step of the type at the largest logit.

1. A token's log-probability differs by at most FAR x E from the model alone's, or from what float32 gives:
   the model alone may be the one that is further off.
2. Over one answer of SEVERAL tokens or more the root mean square of these differences is at most NEAR x E.
3. A token may be another than alone only where the model alone gives it a score (log-probability, in the
   units of temperature 1 with a seeded draw's noise) within 2 x FAR x E of its best one: two scores, each off
   by FAR x E. So where the best two are further apart, the token is the same.

The model alone is asked along the tokens that the batch gave, so that what follows a token that rounding
decided is held to the rule as well.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import mlx.core as mx

from scheduler.engine.mlx.device import device
from scheduler.engine.mlx.kv.cache_layout import alone
from scheduler.engine.mlx.packed import Packing
from scheduler.engine.mlx.sampling.draw import gumbel, position_key
from scheduler.engine.mlx.sampling.host_chooser import host_gumbel
from scheduler.shared.messages import Submit
from tests.contracts.journal import prompt_of
from tests.scheduler.engine.mlx.zoo.alone import Answer
from tests.scheduler.engine.mlx.zoo.tiny import VOCABULARY

FAR = 5.0
NEAR, SEVERAL = 2.0, 4
CALIBRATION = tuple(
    tuple(token % VOCABULARY for token in prompt_of(count, 500 + count)) for count in (60, 340)
)
"""Prompts, shorter and longer than every window."""
_ANSWER_TOKENS = 24
_STEP = {mx.float32: 2.0**-23, mx.float16: 2.0**-10, mx.bfloat16: 2.0**-7}
"""Between a number and the next one, as a part of it, at most."""
_PIECE = 2048
"""mlx-lm's prefill_step_size."""


def logprobs_alone(
    model: Any, prompt: Sequence[int], answer: Sequence[int], packing: Packing | None = None
) -> mx.array:
    """(tokens, vocabulary) float32: before each token of the answer, by the model alone as mlx-lm runs it,
    with keys and values rounded as `packing` does."""
    caches = alone(model, packing)
    for start in range(0, len(prompt) - 1, _PIECE):
        model(mx.array([prompt[start : min(start + _PIECE, len(prompt) - 1)]]), cache=caches)
        mx.eval([layer.state for layer in caches])
    rows = []
    for token in [prompt[-1], *answer[:-1]]:
        rows.append(model(mx.array([[token]]), cache=caches)[0, -1].astype(mx.float32))
        mx.eval(rows[-1])
    logits = mx.stack(rows)
    return logits - mx.logsumexp(logits, axis=-1, keepdims=True)


def rounding_error(model: Any, exact: Any, packing: Packing | None = None) -> float:
    """E, of a model that packs its keys and values so, and of the same weights in float32."""
    squares: list[float] = []
    half_step = 0.0
    for prompt in CALIBRATION:
        answer = list(prompt[:_ANSWER_TOKENS])  # Any tokens will do, and all have a probability.
        logits = model(mx.array([prompt]))
        half_step = max(half_step, _STEP[logits.dtype] / 2 * float(mx.abs(logits).max()))
        difference = logprobs_alone(model, prompt, answer, packing) - logprobs_alone(exact, prompt, answer)
        chosen = mx.take_along_axis(difference, mx.array(answer)[:, None], axis=1)
        squares += mx.square(chosen).reshape(-1).tolist()  # type: ignore[arg-type]
    return max(math.sqrt(sum(squares) / len(squares)), half_step)


class Rule:
    """Holds answers of a batch to one model alone."""

    def __init__(self, model: Any, exact: Any, packing: Packing | None = None) -> None:
        """`exact`: the same weights in float32."""
        self.model = model
        self._exact = exact
        self._packing = packing
        self.error = rounding_error(model, exact, packing)
        self.largest = 0.0
        """The largest difference of a logarithm of probability so far."""

    def difference(self, found: Answer, submit: Submit) -> str | None:
        """Return where an answer is further from the model alone than rounding, in words, if it is."""
        if len(found.tokens) != submit.max_tokens:
            return f"wrong tokens: {len(found.tokens)} of {submit.max_tokens}"
        expected = logprobs_alone(self.model, submit.prompt.tolist(), found.tokens, self._packing)
        squares = 0.0
        for at, token in enumerate(found.tokens):
            behind = _behind(expected[at], token, submit, at)
            if not behind <= 2 * FAR * self.error:
                return f"wrong tokens: token {at} of {submit.max_tokens}, by {behind:.2g}"
            off = abs(found.logprobs[at] - float(expected[at, token]))
            if off > NEAR * self.error:
                exact = logprobs_alone(self._exact, submit.prompt.tolist(), found.tokens[: at + 1])
                off = min(off, abs(found.logprobs[at] - float(exact[at, token])))
            if not off <= FAR * self.error:  # NaN is a difference.
                return f"wrong logits: token {at}, by {off:.2g} with rounding of {self.error:.2g}"
            squares += off * off
            self.largest = max(self.largest, off)
        mean = math.sqrt(squares / len(found.tokens))
        if mean > NEAR * self.error and len(found.tokens) >= SEVERAL:
            return f"wrong logits: an answer by {mean:.2g} with rounding of {self.error:.2g}"
        return None


def _behind(logprobs: mx.array, token: int, submit: Submit, position: int) -> float:
    """How far this token's score is behind the best one's, in the units of temperature 1."""
    sampling, scores = submit.sampling, logprobs
    if sampling.temperature > 0:
        noise = host_gumbel if device().traits.exp_is_slow else gumbel
        keys = [position_key(sampling.seed, position)]
        scores = scores + sampling.temperature * noise(keys, scores.size).reshape(-1)
    return float(scores.max()) - float(scores[token])
