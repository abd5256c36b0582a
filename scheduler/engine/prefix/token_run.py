"""Token ids as an array, and how much two runs of them have in common: for the tree, sequences and the disk
tier."""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from typing import TypeAlias

KEY_BYTES = array("I").itemsize
"""What a token id costs in an edge."""
Tokens: TypeAlias = Sequence[int]


def compact(tokens: Tokens) -> array[int]:
    """The tokens as edges keep them; free if they are compact already."""
    return tokens if isinstance(tokens, array) and tokens.typecode == "I" else array("I", tokens)


def common_run(left: array[int], start: int, right: array[int], limit: int) -> int:
    """How many of the first `limit` tokens of left[start:] and right agree.

    Bisection over slices: at most `2 * limit` tokens are touched, all of them in C, in O(log limit) steps.
    """
    if left[start : start + limit] == right[:limit]:
        return limit
    agreed, differ = 0, limit  # The first difference lies in [agreed, differ).
    while differ - agreed > 1:
        middle = (agreed + differ) // 2
        if left[start + agreed : start + middle] == right[agreed:middle]:
            agreed = middle
        else:
            differ = middle
    return agreed
