"""Token ids in sequences, prefix tree and disk tier: `array("I")`, compared slice by slice."""

from __future__ import annotations

from array import array
from collections.abc import Sequence

KEY_BYTES = array("I").itemsize
"""The size of a token id."""


def compact(tokens: Sequence[int]) -> array[int]:
    """Return the tokens as an array; free if they are one already."""
    return tokens if isinstance(tokens, array) and tokens.typecode == "I" else array("I", tokens)


def common_run(left: array[int], start: int, right: array[int], limit: int) -> int:
    """Return how many of the first `limit` tokens of left[start:] and right agree.

    Bisection over slices: at most `2 * limit` tokens are compared, all of them in C, in O(log limit) steps.
    """
    if left[start : start + limit] == right[:limit]:
        return limit
    agreed, differ = 0, limit  # The first difference is in [agreed, differ).
    while differ - agreed > 1:
        middle = (agreed + differ) // 2
        if left[start + agreed : start + middle] == right[agreed:middle]:
            agreed = middle
        else:
            differ = middle
    return agreed
