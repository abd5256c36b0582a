"""Bytes of one row's caches on the device, by its tokens: the arithmetic behind admission.

Three kinds of layers: keys and values of every token; those of a sliding window, which stop growing; a
recurrent state, of full size from the first token on. Measured at load, from caches that the model has run
with; the arrays themselves may be rounded up (mlx-lm grows by 256 tokens).
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Window:
    """All layers that keep only the last `tokens` tokens."""

    tokens: int
    token_bytes: int


@dataclass(frozen=True, slots=True)
class RowBytes:
    """`state_bytes`: independent of the row's length."""

    token_bytes: int
    state_bytes: int = 0
    windows: tuple[Window, ...] = ()

    def held(self, tokens: int, in_place_tokens: int = 0) -> int:
        """Return the bytes of a row of `tokens` tokens that leaves the first `in_place_tokens` in the prefix
        cache. Windows and states are always its own."""
        held = self.token_bytes * (tokens - in_place_tokens) + self.state_bytes
        for window in self.windows:  # Not a generator: runs for every row before every step.
            held += window.token_bytes * min(tokens, window.tokens)
        return held
