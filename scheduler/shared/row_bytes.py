"""Bytes of one row's caches on the device, by its tokens: the arithmetic behind admission.

Three kinds of layers: keys and values of every token; those of a sliding window, which stop growing; a
recurrent state, of full size from the first token on. Measured at load, from caches that the model has run
with; the arrays themselves may be rounded up (mlx-lm grows by 256 tokens).
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass

_LEAST_ROOM_TOKENS = 32
_ROOM_PART = 8
_MOST_SPARE_PLACES = 4


@dataclass(frozen=True, slots=True)
class Window:
    """All layers that keep only the last `tokens` tokens."""

    tokens: int
    token_bytes: int


@dataclass(frozen=True, slots=True)
class RowBytes:
    """What a row's caches take. `state_bytes` does not depend on the row's length."""

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

    def fitting_tokens(self, room_bytes: int, most_tokens: int) -> int:
        """Return the length of the longest row of up to `most_tokens` tokens that fits into this room."""
        return bisect_right(range(1, most_tokens + 1), room_bytes, key=self.held)

    def batch(self, own_tokens: Sequence[int], coming_tokens: int = 0) -> int:
        """Return the most bytes of the arrays in which rows with this many tokens of their own lie side by
        side (`mlx/kv/padded_rows.py`), and of their windows and states. `coming_tokens`: room for this many
        more of each."""
        if not own_tokens:
            return 0
        rows, longest = len(own_tokens), max(own_tokens) + coming_tokens
        places = rows + spare_places(rows)
        return places * self.token_bytes * roomy(longest) + rows * self.held(longest, longest)


def roomy(tokens: int) -> int:
    """Return the tokens for which there is room where a row of a batch has `tokens`: an eighth more, so that
    copying the batch costs about eight tokens a step."""
    return tokens + max(_LEAST_ROOM_TOKENS, tokens // _ROOM_PART)


def spare_places(rows: int) -> int:
    """Return how many rows may join a batch of `rows` before it is copied: few beside few, for each takes as
    much as the longest row."""
    return min(_MOST_SPARE_PLACES, rows // 2)
