"""How many prompt tokens a step may compute: what fits between two tokens of those who decode.

Learnt from the running engine, never configured: seconds of a decode step by rows, and prefill speed by chunk
size and context length, each an exponential average in a bucket of its own (powers of two). A step is timed
as a whole, because MLX computes asynchronously: what one part launches, another waits for.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TypeVar

LEAST_TOKENS = 8
"""Whatever the target: a prefill that waits for ever is worse than a late token."""
AUTOMATIC_RATIO = 3.5
"""Without a target in time: a step with prefill may take so many times a step without. Prefill then has 5/7
of the time, so that a long prompt takes 1.4 times what it would alone, and small chunks' losses on top."""
_FIRST_TOKENS = 64
_WEIGHT = 0.3
_Key = TypeVar("_Key")


@dataclass(slots=True)
class _Average:
    value: float

    def take(self, sample: float) -> None:
        self.value += _WEIGHT * (sample - self.value)


def _bucket(number: int) -> int:
    return max(0, number).bit_length()


@dataclass(slots=True)
class PrefillPace:
    """`target_seconds` None: in proportion to the decode step (AUTOMATIC_RATIO)."""

    most_tokens: int
    """Of one step while nobody decodes: large chunks are what the device computes best."""
    target_seconds: float | None = None
    _decode: dict[int, _Average] = field(default_factory=dict)
    _speeds: dict[tuple[int, int], _Average] = field(default_factory=dict)

    def tokens(self, decoding: int, context: int) -> int:
        """The budget of the coming step, with `decoding` rows and prompts that have got to `context`."""
        if decoding == 0:
            return self.most_tokens
        step = self.decode_seconds(decoding)
        if step is None:
            return min(_FIRST_TOKENS, self.most_tokens)
        target = self.target_seconds if self.target_seconds is not None else AUTOMATIC_RATIO * step
        return max(LEAST_TOKENS, min(self.most_tokens, self._fitting(target - step, context)))

    def observe(self, seconds: float, decoding: int, prefilled: int, context: int) -> None:
        """A step took so long, with so many rows decoding and prompt tokens (padding too) computed."""
        if seconds <= 0:
            return  # A clock that stood still teaches nothing.
        if prefilled == 0:
            if decoding:
                self._learn(self._decode, _bucket(decoding), seconds)
            return
        step = (self.decode_seconds(decoding) or 0.0) if decoding else 0.0
        # At least a tenth: what is left after the decode step is a difference of two noisy numbers.
        spent = max(seconds - step, 0.1 * seconds)
        self._learn(self._speeds, (_bucket(prefilled), _bucket(context)), prefilled / spent)

    def decode_seconds(self, decoding: int) -> float | None:
        """What a step of so many rows takes; the nearest number of rows that is known speaks for it."""
        if not self._decode:
            return None
        wanted = _bucket(decoding)
        return self._decode[min(self._decode, key=lambda known: abs(known - wanted))].value

    def speeds(self) -> dict[str, float]:
        """Tokens per second by "chunk/context", for operators."""
        return {
            f"{1 << chunk >> 1}/{1 << context >> 1}": round(average.value, 1)
            for (chunk, context), average in sorted(self._speeds.items())
        }

    def _fitting(self, seconds: float, context: int) -> int:
        """The largest chunk whose learnt speed lets it end in `seconds`."""
        best = 0
        for chunk in range(_bucket(LEAST_TOKENS), _bucket(self.most_tokens) + 1):
            speed = self._speed(chunk, _bucket(context))
            if speed is None:
                return _FIRST_TOKENS
            # Of the chunk sizes of this bucket, the largest that fits.
            fits = min(int(speed * seconds), (1 << chunk) - 1)
            if fits >= 1 << (chunk - 1):
                best = max(best, fits)
        return best

    def _speed(self, chunk: int, context: int) -> float | None:
        if not self._speeds:
            return None
        # Context first: a speed of another chunk size errs by a factor of two, one of a short context by ten.
        near = min(self._speeds, key=lambda known: (abs(known[1] - context), abs(known[0] - chunk)))
        return self._speeds[near].value

    @staticmethod
    def _learn(table: dict[_Key, _Average], key: _Key, sample: float) -> None:
        if key in table:
            table[key].take(sample)
        else:
            table[key] = _Average(sample)
