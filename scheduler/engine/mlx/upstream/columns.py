"""Which positions the columns of a cache hold."""

from __future__ import annotations

from typing import Any

import mlx.core as mx


def first_positions(cache: Any, begin: Any, length: int, columns: int) -> mx.array:
    """Return (rows, 1): the position that a row's first column would have if its padding counted as tokens.

    `begin`: each row's position of the first of `length` queries, or that of all rows; `columns`: how many
    keys they see. Rows of ours may lag, so that their last token is not in the last column, and know their
    first position; in mlx-lm's caches the last column is the last token.
    """
    first = getattr(cache, "first_positions", None)
    if first is None:
        first = mx.array(begin) + length - columns
    return mx.array(first).reshape(-1, 1)
