"""Keys and values of rows of different lengths side by side: their layout, and what is copied when.

All rows end at one column, where the next token of each is written; a shorter row has padding before it. A
row whose last tokens were taken back (`trim`: drafts that the model did not choose) *lags*: it ends some
columns before the others, and its next tokens are written there. The arrays have room for more tokens and
places for more rows than there are, so that
- a step writes its tokens in place,
- tokens are taken back without moving any,
- a row that joins is written into a free place,
- a row that leaves has the last one moved to its place,
and nothing else is copied. mlx-lm's BatchKVCache copies the whole batch for each of the latter two. Here all
rows are copied when room or places run out, when a row joins that is longer than all others, and when much of
the arrays is unused.

What is kept of a token is a number of arrays, all (rows, heads, tokens, size) with sizes of their own: keys
and values, or the two arrays of each where they are packed.
"""

from __future__ import annotations

from collections.abc import Sequence
from operator import attrgetter
from typing import TypeAlias

import mlx.core as mx

from scheduler.shared.row_bytes import roomy, spare_places

Arrays: TypeAlias = tuple[mx.array, ...]
Places: TypeAlias = tuple[mx.array, mx.array, mx.array]
"""The row, the head and the column of each number of (rows, heads, tokens)."""


_NBYTES = attrgetter("nbytes")


class PaddedRows:
    """`padding` and `lags` have an entry for each row, in the order of their places: the columns before its
    tokens, and those between its last token and `end`. Array content behind `end`, beyond the last row, in
    the padding and in a lag is meaningless, but finite in the latter two."""

    def __init__(self, padding: Sequence[int], end: int = 0, coming_tokens: int = 0) -> None:
        """`coming_tokens`: the length that the rows will have soon, for which room is made once."""
        self.arrays: list[mx.array] = []
        """Empty until something is written."""
        self.padding = list(padding)
        self.lags = [0] * len(self.padding)
        self.end = end
        self._coming_tokens = coming_tokens

    @property
    def nbytes(self) -> int:
        return sum(map(_NBYTES, self.arrays))

    def append(self, more: Arrays, places: Places | None = None) -> Arrays:
        """Append (rows, heads, tokens, size) to the rows. Return all that the rows have. `places`: where they
        are written if rows lag; all layers have the same."""
        start, self.end = self.end, self.end + more[0].shape[2]
        if not self.arrays:
            self.arrays = [self._new(like) for like in more]
        elif self.end > self.arrays[0].shape[2]:
            self.arrays = [self._roomier(array, start) for array in self.arrays]
        rows = len(self.padding)
        assert places is not None or not any(self.lags), "rows that lag have columns of their own"
        for array, new in zip(self.arrays, more, strict=True):
            if places is None:
                array[:rows, :, start : self.end] = new
            else:
                array[places] = new
        return self.whole()

    def trim(self, tokens: Sequence[int]) -> None:
        """Take back the last tokens of each row, the number given for each."""
        self._lag([own + more for own, more in zip(self.lags, tokens, strict=True)])

    def _lag(self, lags: Sequence[int]) -> None:
        least = min(lags)
        self.lags, self.end = [own - least for own in lags], self.end - least

    def whole(self) -> Arrays:
        """Return all rows' arrays, without spare room."""
        rows = len(self.padding)
        return tuple([array[:rows, :, : self.end] for array in self.arrays])  # For each layer in each step.

    def write(self, row: int, start: int, written: Arrays) -> None:
        """Put (1, heads, tokens, size) at a row's columns from `start`, which lie before `end`."""
        self.arrays = self.arrays or [self._new(like) for like in written]
        for array, new in zip(self.arrays, written, strict=True):
            array[row : row + 1, :, start : start + new.shape[2]] = new

    def row(self, row: int) -> Arrays:
        """Return one row as it is now, (1, heads, columns, size), with padding and spare room. These are
        slices: our arrays are overwritten as soon as the row leaves and another takes its place."""
        return tuple(array[row : row + 1] for array in self.arrays)

    def twin(self) -> PaddedRows:
        """Return a copy-on-write copy."""
        twin = PaddedRows(self.padding, self.end, self._coming_tokens)
        twin.lags = list(self.lags)
        twin.arrays = [array[:] for array in self.arrays]
        return twin

    def justify(self) -> None:
        """Move the rows that lag to the common end, which copies the batch."""
        if self.arrays and any(self.lags):
            room = self.arrays[0].shape[2]
            columns = (mx.arange(room)[None, None, :, None] - mx.array(self.lags)[:, None, None, None]) % room
            rows = len(self.padding)
            self.arrays = [mx.take_along_axis(array[:rows], columns, axis=2) for array in self.arrays]
        self.padding = [own + lag for own, lag in zip(self.padding, self.lags, strict=True)]
        self.lags = [0] * len(self.padding)

    def make_room(self, tokens: int) -> None:
        """Prepare to append `tokens` to each row: if the batch must be copied for them, move the rows that
        lag to the common end first, so that no room is made for the columns of lags."""
        if self.arrays and self.end + tokens > self.arrays[0].shape[2] and any(self.lags):
            self.justify()
            self._drop_columns(min(self.padding))

    def join(self, other: PaddedRows) -> None:
        """Append all rows of the other batch, each moved to the common end: while a row lags, each step
        scatters its tokens."""
        other.justify()
        rows, more = len(self.padding), len(other.padding)
        unused = min(other.padding)
        length = other.end - unused
        end = max(self.end, length)
        if like := self.arrays or other.arrays:
            if not self.arrays or rows + more > self.arrays[0].shape[0] or end > self.end:
                places = rows + more + spare_places(rows + more)
                self._rebuild(like, list(range(rows)), places, 0, end)
            self.padding, self.end = [own + end - self.end for own in self.padding], end
            if other.arrays and length:
                joined = slice(rows, rows + more)
                for array, theirs in zip(self.arrays, other.arrays, strict=True):
                    array[joined, :, end - length : end] = theirs[:more, :, unused : other.end]
                    # A failed row may have left NaN there, and a weight of 0 times NaN is NaN.
                    array[joined, :, : end - length] = 0
                    array[joined, :, end:] = 0
        self.padding += [own - unused + end - length for own in other.padding]
        self.lags += [0] * more

    def select(self, order: list[int]) -> None:
        """Keep these rows, in this order. Cheap if most of them keep their places."""
        self.padding = [self.padding[row] for row in order]
        self._lag([self.lags[row] for row in order])
        if not self.arrays:
            return
        least = min(self.padding)
        moved = [(place, row) for place, row in enumerate(order) if place != row]
        places = self.arrays[0].shape[0]
        few = 2 * len(order) < places - spare_places(places)
        if few or 4 * len(moved) > len(order) + 4 or self._is_much(least):
            self._rebuild(self.arrays, order, len(order), least, self.end - least)
            self.padding, self.end = [own - least for own in self.padding], self.end - least
        elif moved:
            rows = mx.array([row for _, row in moved])
            taken = [array[rows] for array in self.arrays]  # All columns: a lag may show them (`join`).
            # Evaluated now, so that nothing reads the arrays when the next step writes to them.
            mx.async_eval(taken)  # type: ignore[no-untyped-call]
            for array, rows_taken in zip(self.arrays, taken, strict=True):
                for at, (place, _) in enumerate(moved):
                    array[place] = rows_taken[at]

    def forget(self, tokens: Sequence[int]) -> None:
        """Drop the first tokens of each row, the number given for each."""
        self.padding = [own + more for own, more in zip(self.padding, tokens, strict=True)]
        least = min(self.padding)
        if not self.arrays:
            return
        if all(own + lag == self.end for own, lag in zip(self.padding, self.lags, strict=True)):
            self.arrays = []
            self.padding, self.lags, self.end = [0] * len(self.padding), [0] * len(self.padding), 0
        elif self._is_much(least):
            self._drop_columns(least)

    def _drop_columns(self, first: int) -> None:
        """Drop the first columns, which are padding of all rows."""
        if first and self.arrays:
            rows = list(range(len(self.padding)))
            self._rebuild(self.arrays, rows, self.arrays[0].shape[0], first, self.end - first)
            self.padding, self.end = [own - first for own in self.padding], self.end - first

    def _is_much(self, padding: int) -> bool:
        """Return whether padding common to all rows is to be removed: it is as much as the spare room."""
        return padding == self.end > 0 or padding >= roomy(self.end) - self.end

    def _rebuild(self, like: Sequence[mx.array], order: list[int], places: int, trim: int, end: int) -> None:
        """Make new arrays as `like` with our rows, without their first `trim` columns."""
        own: Sequence[mx.array | None] = self.arrays or [None] * len(like)
        self.arrays = [
            self._copied(array, model, order, places, trim, end)
            for array, model in zip(own, like, strict=True)
        ]

    def _copied(
        self, own: mx.array | None, like: mx.array, order: list[int], places: int, trim: int, end: int
    ) -> mx.array:
        new = mx.zeros((places, like.shape[1], roomy(end), like.shape[3]), like.dtype)
        if own is not None:
            stay = order == list(range(len(order)))
            rows = own[: len(order), :, trim : self.end]
            if not stay:
                rows = own[:, :, trim : self.end][mx.array(order)]
            new[: len(order), :, end - (self.end - trim) : end] = rows
        return new

    def _new(self, like: mx.array) -> mx.array:
        room = max(self.end, self._coming_tokens)
        return mx.zeros((len(self.padding), like.shape[1], roomy(room), like.shape[3]), like.dtype)

    def _roomier(self, array: mx.array, used: int) -> mx.array:
        shape = (*array.shape[:2], roomy(self.end) - used, array.shape[3])
        return mx.concatenate([array[:, :, :used], mx.zeros(shape, array.dtype)], axis=2)
