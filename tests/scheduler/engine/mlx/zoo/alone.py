"""What mlx-lm says to one request without anything of ours: the answers that a batch is held to.

**Ties.** In float32 a batch may round otherwise than one row. So with each token stands by how much its score
leads: two scores nearer than TIE may be chosen either way round, and what follows is another answer. A
difference elsewhere is a wrong token. The log-probabilities of the tokens are compared too: a batch in which
a row sees a little of what it should not is often far from another token, and never within ROUNDING.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import mlx.core as mx
from mlx_lm.generate import generate_step
from mlx_lm.models.cache import make_prompt_cache

from scheduler.engine.mlx.device import device
from scheduler.shared.messages import Submit
from scheduler.shared.thinking import ThinkingLimit
from tests.scheduler.engine.mlx.sampling.row_sampler import LogitsAdjustment, RowSampler

TIE = 1e-3
"""The bound is on logarithms of probabilities; where there is a seed, over the temperature and with the
draw's noise."""
ROUNDING = 1e-3
"""The bound is on the natural logarithm of a chosen token's probability: a hundred times what right
models differ by."""


@dataclass(slots=True)
class Answer:
    """Tokens of one request, with the natural logarithm of each one's probability and its lead. `prompt`:
    the logarithms of its prompt's tokens but the first, where they are asked for."""

    tokens: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    leads: list[float] = field(default_factory=list)
    prompt: list[float] = field(default_factory=list)


class _Recorded:
    """One request's parameters, as a processor of logits and a sampler that write down what they chose."""

    def __init__(self, submit: Submit, vocabulary: int) -> None:
        self.answer = Answer()
        self._submit = submit
        self._draw = RowSampler(submit.sampling) if submit.sampling.temperature > 0 else None
        self._adjustment = LogitsAdjustment(submit.sampling, len(submit.prompt), vocabulary)
        self._limit = None if submit.thinking is None else ThinkingLimit(submit.thinking)
        self._own: Any = None
        """The model's own log-probabilities of the next token."""

    def process(self, _: mx.array, logits: mx.array) -> mx.array:
        submit, said = self._submit, self.answer.tokens
        self._own = logits - mx.logsumexp(logits, axis=-1, keepdims=True)
        if LogitsAdjustment.wanted(submit.sampling):
            logits = self._adjustment(mx.array([*submit.prompt, *said]), logits)
        forbidden = list(submit.stop_token_ids) if len(said) < submit.min_tokens else []
        if self._limit is not None and (held := self._limit.held(0)) is not None:
            forbidden.append(held.token)
        if forbidden:
            logits = logits[:]
            logits[:, mx.array(forbidden)] = -mx.inf
        return logits

    def __call__(self, logprobs: mx.array) -> mx.array:
        scores = (logprobs if self._draw is None else self._draw.scores(logprobs)).reshape(-1)
        best = mx.sort(scores)[-2:]
        token, lead = int(mx.argmax(scores)), float(best[1] - best[0])
        if self._limit is not None:
            if self._limit.forced is not None:
                token, lead = self._limit.forced, math.inf
            self._limit.accept(token)
        self.answer.tokens.append(token)
        self.answer.logprobs.append(float(self._own.reshape(-1)[token]))
        self.answer.leads.append(lead)
        return mx.array([token])


class Alone:
    """The oracle over one model: each question is asked once."""

    def __init__(self, model: Any, prefill_tokens: int = 2048) -> None:
        """`prefill_tokens`: the largest piece in which mlx-lm reads a prompt."""
        self._model = model
        self._prefill_tokens = prefill_tokens
        self._vocabulary: int = model(mx.array([[0]]), cache=make_prompt_cache(model)).shape[-1]
        self._known: dict[tuple[Any, ...], Answer] = {}
        self._scored: dict[tuple[int, ...], list[float]] = {}

    def answer(self, submit: Submit, most_tokens: int | None = None) -> Answer:
        """Read this prompt in pieces of at most `most_tokens`, by default as others."""
        prefill_tokens = most_tokens or self._prefill_tokens
        ends = submit.stop_token_ids if submit.min_tokens else ()
        asked = (tuple(submit.prompt), submit.max_tokens, submit.min_tokens, ends)
        key = (*asked, submit.sampling, submit.thinking, prefill_tokens, device().traits.exp_is_slow)
        if key not in self._known:
            recorded = _Recorded(submit, self._vocabulary)
            steps = generate_step(
                mx.array(submit.prompt.tolist()),
                self._model,
                max_tokens=submit.max_tokens,
                sampler=recorded,
                logits_processors=[recorded.process],
                prefill_step_size=prefill_tokens,
            )
            tokens = [token for token, _ in steps]
            # It computes one token ahead.
            answer, count = recorded.answer, len(tokens)
            assert tokens == answer.tokens[:count]
            self._known[key] = Answer(tokens, answer.logprobs[:count], answer.leads[:count])
        return self._known[key]

    def prompt_logprobs(self, prompt: Sequence[int]) -> list[float]:
        """Return the natural logarithms of the probabilities of a prompt's tokens but the first, read in one
        piece."""
        key = tuple(prompt)
        if key not in self._scored:
            logits = self._model(mx.array([key]), cache=make_prompt_cache(self._model))[0].astype(mx.float32)
            scores = logits - mx.logsumexp(logits, axis=-1, keepdims=True)
            values = mx.take_along_axis(scores[:-1], mx.array(key[1:], dtype=mx.uint32)[:, None], axis=-1)
            self._scored[key] = values.reshape(-1).tolist()  # type: ignore[assignment]
        return self._scored[key]


def rounding(found: Answer, expected: Answer) -> float:
    """The largest difference of a logarithm of probability before the first token that differs."""
    largest = 0.0
    for at, token in enumerate(found.tokens[: len(expected.tokens)]):
        if token != expected.tokens[at]:
            break
        largest = max(largest, abs(found.logprobs[at] - expected.logprobs[at]))
    return largest


def difference(found: Answer, expected: Answer, begin: int = 0) -> str | None:
    """Return where an answer leaves the expected one beyond a tie, in words, if it does. `found` begins
    with token `begin` of the answer."""
    for at in range(begin, len(expected.tokens)):
        if at - begin >= len(found.tokens):
            return f"wrong tokens: only {at} of {len(expected.tokens)}"
        token, logprob = found.tokens[at - begin], found.logprobs[at - begin]
        if token != expected.tokens[at]:
            if expected.leads[at] <= TIE:
                return None
            return f"wrong tokens: token {at} of {len(expected.tokens)}, by {expected.leads[at]:.2g}"
        if not abs(logprob - expected.logprobs[at]) <= ROUNDING:
            return f"wrong logits: token {at}, by {abs(logprob - expected.logprobs[at]):.2g}"
    if len(found.tokens) > len(expected.tokens) - begin:
        return "wrong tokens: too many"
    return None
