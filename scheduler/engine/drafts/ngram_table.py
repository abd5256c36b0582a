"""Where the last tokens of a text stood before: prompt lookup (Saxena 2023), with memory that is bounded.

A table of positions by the hash of the `order` tokens before them: a token is entered in O(1), a later run
takes the place of an earlier one with the same hash, and what is found is compared, so a collision costs a
missed match and never a wrong one.
"""

from __future__ import annotations

from array import array

_FACTOR = 0x9E3779B1
_MASK_32 = (1 << 32) - 1
_LEAST_SLOTS, _MOST_SLOTS = 1 << 10, 1 << 17
"""4 KiB to 512 KiB a table: from 65,536 tokens on, later runs begin to take the places of earlier ones."""
_FEW = 48
"""Up to this number of tokens Python's own loop is faster than NumPy's first call."""


class NgramTable:
    """The runs of `order` tokens of one text, which may grow."""

    def __init__(self, order: int, expected_tokens: int) -> None:
        slots = 1 << (2 * expected_tokens - 1).bit_length()
        self._order = order
        self._ends = array("I", bytes(4 * min(_MOST_SLOTS, max(_LEAST_SLOTS, slots))))
        self._last = len(self._ends) - 1
        self._entered = order - 1
        """The end of the last run that is in the table."""

    def extend(self, text: array[int]) -> None:
        """Enter what the text has grown by. The run at its very end is not entered: nothing follows it."""
        first, last = self._entered + 1, len(text) - 1
        if last < first:
            return
        if last - first < _FEW:
            for end in range(first, last + 1):
                self._ends[self._slot(text, end)] = end
        else:
            # Imported here: it is a third of the start of an engine without a model, which may need none.
            import numpy as np

            known = np.frombuffer(text[first - self._order : last], np.uint32)
            count = last - first + 1
            hashes = np.zeros(count, np.uint32)
            for at in range(self._order):
                hashes = hashes * np.uint32(_FACTOR) + known[at : at + count]
            slots = (hashes ^ (hashes >> np.uint32(15))) & np.uint32(self._last)
            # NumPy keeps the last of several values for one slot.
            np.frombuffer(self._ends, np.uint32)[slots] = np.arange(first, last + 1, dtype=np.uint32)
        self._entered = last

    def find(self, text: array[int]) -> int | None:
        """Return the position behind the latest known place of the text's last `order` tokens, or None."""
        end = len(text)
        if end < self._order:
            return None
        found = self._ends[self._slot(text, end)]
        if not found or text[found - self._order : found] != text[end - self._order :]:
            return None
        return found

    def _slot(self, tokens: array[int], end: int) -> int:
        found = 0
        for token in tokens[end - self._order : end]:
            found = (found * _FACTOR + token) & _MASK_32
        return (found ^ (found >> 15)) & self._last
