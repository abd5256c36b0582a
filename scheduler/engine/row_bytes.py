"""What one row of the batch holds on the device, by its tokens: the arithmetic that admission counts with.

Three kinds of layers cost three ways: keys and values of every token; those of a sliding window, which stop
growing; a recurrent state, whole from the first token on. Measured at load, from caches that the model has
run with; the arrays themselves may be rounded up (mlx-lm grows by 256 tokens).
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Window:
    """All layers that remember the last `tokens` tokens, and no more."""

    tokens: int
    token_bytes: int


@dataclass(frozen=True, slots=True)
class RowBytes:
    """`state_bytes`: what a row holds however long it is."""

    token_bytes: int
    state_bytes: int = 0
    windows: tuple[Window, ...] = ()

    def held(self, tokens: int, in_place_tokens: int = 0) -> int:
        """Of a row of so many tokens that leaves the first so many of them in the prefix cache. Windows and
        states are always its own."""
        held = self.token_bytes * (tokens - in_place_tokens) + self.state_bytes
        for window in self.windows:  # No sum: it is asked of every row before every step, and most have none.
            held += window.token_bytes * min(tokens, window.tokens)
        return held
