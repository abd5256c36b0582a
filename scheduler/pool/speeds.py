"""How fast an engine is, learned from its steps. Pure.

A step's duration is modelled as a line over the rows that decode, fitted to recent steps, plus a cost per
prompt token beyond that line. The parent learns this from the totals that each step brings, so that it needs
no message of its own."""

from __future__ import annotations

from scheduler.link.messages import Counters

_DECAY = 0.99
"""Weight of the past at each step: the last hundred count."""
_FIRST_STEP_SECONDS = 0.03
_FIRST_TOKEN_SECONDS = 0.001
_ROW_SHARE = 1 / 32
"""Of a step's duration, what one more row is assumed to cost until rows have varied: decoding is bound by
reading the weights, which all rows share."""
_PRIOR = 4.0
"""Weight of that assumption, in rows squared: as much as steps whose rows vary by two."""


class Speeds:
    """Of one engine; kept over its restarts."""

    def __init__(self, chunk_tokens: int) -> None:
        """`chunk_tokens`: the most prompt tokens of a step."""
        self._chunk_tokens = chunk_tokens
        self._last = Counters()
        # Decayed sums over steps without prefill.
        self._steps = self._rows = self._seconds = self._rows_squared = self._rows_seconds = 0.0
        # Over all steps: engine time, and prompt and output tokens.
        self._busy = self._prompt = self._output = 0.0
        # Over steps with prefill: tokens, and seconds beyond what their rows explain.
        self._prefilled = self._beyond = 0.0

    def engine_started(self) -> None:
        """Its totals begin at zero."""
        self._last = Counters()

    def take(self, now: Counters) -> None:
        """The totals after a step, or after several."""
        last, self._last = self._last, now
        steps = now.steps - last.steps
        if steps < 1:
            return
        seconds = max(0.0, now.busy_seconds - last.busy_seconds) / steps
        rows = (now.generated_tokens - last.generated_tokens) / steps
        prefilled = (now.prefilled_tokens - last.prefilled_tokens) / steps
        self._busy = self._busy * _DECAY + seconds
        self._prompt = self._prompt * _DECAY + prefilled
        self._output = self._output * _DECAY + rows
        if prefilled:
            self._prefilled = self._prefilled * _DECAY + prefilled
            self._beyond = self._beyond * _DECAY + max(0.0, seconds - self._line(rows))
        elif rows:
            self._steps = self._steps * _DECAY + 1
            self._rows = self._rows * _DECAY + rows
            self._seconds = self._seconds * _DECAY + seconds
            self._rows_squared = self._rows_squared * _DECAY + rows * rows
            self._rows_seconds = self._rows_seconds * _DECAY + rows * seconds

    @property
    def row_seconds(self) -> float:
        """What one more decoding row adds to a step."""
        if not self._steps:
            return _FIRST_STEP_SECONDS * _ROW_SHARE
        mean_rows, mean_seconds = self._rows / self._steps, self._seconds / self._steps
        variance = max(0.0, self._rows_squared / self._steps - mean_rows**2)
        covariance = self._rows_seconds / self._steps - mean_rows * mean_seconds
        prior = mean_seconds * _ROW_SHARE
        return max(0.0, (covariance + _PRIOR * prior / self._steps) / (variance + _PRIOR / self._steps))

    def step_seconds(self, rows: float) -> float:
        """Duration of a step that decodes this many rows, without prefill."""
        return self._line(rows) if self._steps else _FIRST_STEP_SECONDS + rows * self.row_seconds

    def prefill_seconds(self, tokens: int, rows: int) -> float:
        """How long this many prompt tokens take beside these rows: their own cost, and the steps that they
        are spread over."""
        return tokens / self._chunk_tokens * self.step_seconds(rows) + tokens * self._token_seconds

    def service_token_seconds(self, output_weight: float) -> float | None:
        """Engine time of one token of service (an output token is `output_weight` of them); None: it has
        computed none."""
        tokens = self._prompt + output_weight * self._output
        return self._busy / tokens if tokens else None

    @property
    def prefill_tokens_per_second(self) -> float | None:
        """For reports, of an engine that decodes nothing; None: it has computed none."""
        seconds = self.prefill_seconds(self._chunk_tokens, 0)
        return self._chunk_tokens / seconds if self._prefilled and seconds else None

    @property
    def decode_step_seconds(self) -> float | None:
        """For reports: the mean of recent steps without prefill; None: there was none."""
        return self._seconds / self._steps if self._steps else None

    @property
    def _token_seconds(self) -> float:
        return self._beyond / self._prefilled if self._prefilled else _FIRST_TOKEN_SECONDS

    def _line(self, rows: float) -> float:
        if not self._steps:
            return 0.0
        return max(0.0, self._seconds / self._steps + self.row_seconds * (rows - self._rows / self._steps))
