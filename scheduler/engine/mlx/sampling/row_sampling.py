"""One row's sampling: its parameters, and its state from step to step."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import InitVar, dataclass, field

import mlx.core as mx
import numpy as np

from scheduler.engine.grammars.constraint import Constraint
from scheduler.engine.mlx.device import device
from scheduler.engine.mlx.sampling.penalties import HostCounts, TokenCounts, penalises
from scheduler.shared.messages import Sampling
from scheduler.shared.thinking import ThinkingLimit

LEAST_TEMPERATURE = 1e-5
"""Below it a row is greedy, as in vLLM: 1 / temperature could overflow, and only the best token would ever be
drawn."""
LEAST_FACTOR = float(np.finfo(np.float32).tiny)
"""A smaller repetition penalty is 0 on some devices, and -inf * 0 is NaN."""
_MOST = float(np.finfo(np.float32).max)

_NUMBERS = (
    "temperature",
    "top_p",
    "top_k",
    "min_p",
    "repetition_penalty",
    "presence_penalty",
    "frequency_penalty",
)


@dataclass(slots=True, eq=False)
class RowSampling:
    """Parameters and state of one row. It keeps no token ids: `prompt` and `output` (the answer so far) are
    counted at construction, for penalties."""

    params: Sampling
    vocabulary: int
    prompt: InitVar[Sequence[int]]
    output: InitVar[Sequence[int]] = ()
    top_logprobs: int | None = None
    min_tokens: int = 0
    stop_token_ids: Sequence[int] = ()
    """Masked until the answer has `min_tokens` tokens, unless the grammar allows no other token."""
    constraint: Constraint | None = None
    """The answer's grammar, which has consumed `output`."""
    thinking: ThinkingLimit | None = None
    """The limit of an answer with a thinking budget; it has seen `output`."""
    bias: mx.array | None = field(init=False, default=None)
    on_host: bool = field(default_factory=lambda: device().traits.exp_is_slow)
    """Whether NumPy is faster than MLX after the model: `host_chooser.py` then chooses the tokens."""
    position: int = field(init=False)
    """The next token's position in the output."""
    counts: TokenCounts | HostCounts | None = field(init=False, default=None)
    """Counts for penalties; None if there are none."""
    failure: str | None = field(init=False, default=None)
    """Why its last token must not be emitted, and the row ends."""
    _first_position: int = field(init=False)

    def __post_init__(self, prompt: Sequence[int], output: Sequence[int]) -> None:
        """Raise ValueError or TypeError for parameters that cannot be used, before the row joins a batch."""
        self.position = self._first_position = len(output)
        params = self.params
        _check(params)
        if params.logit_bias:
            ids = mx.array([token for token, _ in params.logit_bias])
            values = mx.array([float(bias) for _, bias in params.logit_bias], dtype=mx.float32)
            self.bias = mx.zeros((self.vocabulary,), mx.float32).at[ids].add(values)
        if penalises(params):
            counts = HostCounts if self.on_host else TokenCounts
            self.counts = counts.of(prompt, output, self.vocabulary)

    @property
    def failure_reason(self) -> str | None:
        """Return why the row fails: its last token cannot be used, or its grammar allows no next token."""
        held = None if self.constraint is None else self.constraint.failure
        return self.failure or held

    @property
    def failed_by_grammar(self) -> bool:
        return self.failure is None and self.constraint is not None and self.constraint.at_limit

    @property
    def sampled(self) -> bool:
        return self.params.temperature >= LEAST_TEMPERATURE

    @property
    def cuts(self) -> bool:
        """Return whether it samples, with a cut-off."""
        params = self.params
        return self.sampled and bool(
            0.0 < params.top_p < 1.0 or params.min_p > 0.0 or 0 < params.top_k < self.vocabulary
        )

    @property
    def has_output(self) -> bool:
        """Return whether the row's input is a token sampled since construction. Its first input is already
        counted: the last token of the prompt or of `output`."""
        return self.position > self._first_position


def _check(params: Sampling) -> None:
    """Raise ValueError or TypeError for a number that the device's float32 cannot hold."""
    for name in _NUMBERS:
        _check_float32(name, getattr(params, name))
    for _, bias in params.logit_bias:
        _check_float32("logit_bias", bias)
    if params.repetition_penalty < LEAST_FACTOR:
        raise ValueError(f"repetition_penalty is {params.repetition_penalty}, and must be more than 0")


def _check_float32(name: str, number: float) -> None:
    if not abs(float(number)) <= _MOST:  # NaN fails every comparison.
        raise ValueError(f"{name} is {number}, which float32 cannot hold")
