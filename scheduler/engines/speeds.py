"""How fast an engine is: what its steps cost, as it has fitted them itself, and what a token of service
takes. Pure."""

from __future__ import annotations

from scheduler.shared.messages import Counters, StepCosts

_DECAY = 0.99
"""Weight of the past at each step: the last hundred count."""
_NOTHING = StepCosts()
_FIRST = StepCosts(step=0.03, token=0.001)
"""Assumed until the engine has measured."""
_ROW_SHARE = 1 / 32
"""The least share of a step's duration that one more row is taken to cost: decoding is bound by reading the
weights, which all rows share, and until rows have varied their cost is part of the step's. With no least
cost, a burst would pile up on the engine that got its first request."""


class Speeds:
    """How fast one engine is; kept over its restarts."""

    def __init__(self, chunk_tokens: int, costs: StepCosts = _NOTHING) -> None:
        """`chunk_tokens`: the most prompt tokens of a step."""
        self._chunk_tokens = chunk_tokens
        self._decode = self._prefill = _FIRST
        self._last = Counters()
        self._running = 0
        # Decayed sums over all steps: engine time, and prompt and output tokens.
        self._busy = self._prompt = self._output = 0.0
        self._learn(costs)

    def engine_started(self) -> None:
        """Expect totals from zero: a new process of the engine measures anew."""
        self._last = Counters()

    def take(self, now: Counters) -> None:
        """Learn from the counters after a step, or after several."""
        last, self._last = self._last, now
        if now.costs != last.costs:
            self._learn(now.costs)
        if (steps := now.steps - last.steps) < 1:
            return
        self._running = now.running or self._running
        self._busy = self._busy * _DECAY + max(0.0, now.busy_seconds - last.busy_seconds) / steps
        self._prompt = self._prompt * _DECAY + (now.prefilled_tokens - last.prefilled_tokens) / steps
        self._output = self._output * _DECAY + (now.generated_tokens - last.generated_tokens) / steps

    def _learn(self, costs: StepCosts) -> None:
        """Take over the costs that the engine has measured. The others stay as its last process had them."""
        if costs.step or costs.row:
            self._decode = costs
        if costs.token or costs.chunk or costs.token_context:
            self._prefill = costs

    @property
    def row_seconds(self) -> float:
        """Return what one more decoding row adds to a step."""
        return max(self._decode.row, self._decode.step * _ROW_SHARE)

    def step_seconds(self, rows: float) -> float:
        """Return the duration of a step that decodes this many rows, without prefill."""
        return self._decode.step + rows * self.row_seconds

    def prefill_seconds(self, tokens: int, rows: int, context_tokens: float = 0.0) -> float:
        """Return how long this many prompt tokens take beside these rows: their own cost with this context,
        and that of the steps that they are spread over."""
        costs = self._prefill
        steps = tokens / self._chunk_tokens * (costs.chunk + (self.step_seconds(rows) if rows else 0.0))
        return steps + tokens * (costs.token + context_tokens * costs.token_context)

    def service_token_seconds(self, output_weight: float) -> float | None:
        """Return the engine time of one token of service (an output token is `output_weight` of them), or
        None if the engine has computed none."""
        tokens = self._prompt + output_weight * self._output
        return self._busy / tokens if tokens else None

    @property
    def prefill_tokens_per_second(self) -> float | None:
        """Return the prefill speed without decoding rows, for reports, or None if the engine has computed
        none."""
        if self._prefill is _FIRST:
            return None
        return self._chunk_tokens / self.prefill_seconds(self._chunk_tokens, 0)

    @property
    def decode_step_seconds(self) -> float | None:
        """Return the step time with the present rows, for reports, or None if the engine has decoded none."""
        return None if self._decode is _FIRST else self.step_seconds(self._running)
