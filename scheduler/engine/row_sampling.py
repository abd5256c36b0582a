"""How one row's tokens are chosen, and where it stands."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import mlx.core as mx

from scheduler.engine.constraint import Constraint
from scheduler.engine.device import device
from scheduler.engine.penalties import HostCounts, TokenCounts, penalises
from scheduler.link.messages import Sampling


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
    on_host: bool = field(default_factory=lambda: device().exp_is_slow)
    """NumPy is faster than MLX at what comes after the model: tokens are chosen by `host_choice.py`."""
    said: TokenCounts | HostCounts | None = field(init=False, default=None)
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
            counts = HostCounts if self.on_host else TokenCounts
            self.said = counts.of(self.prompt, self.output, self.vocabulary)

    @property
    def sampled(self) -> bool:
        return self.params.temperature > 0

    @property
    def cuts(self) -> bool:
        """Whether it samples, and not from all tokens."""
        params = self.params
        return self.sampled and bool(
            0.0 < params.top_p < 1.0 or params.min_p > 0.0 or 0 < params.top_k < self.vocabulary
        )

    @property
    def has_said(self) -> bool:
        """Whether the row's input is new: its first is its prompt's last token, or the last of `output`."""
        return self.position > len(self.output)
