"""Keys and values of rows of different lengths side by side: their layout, and what is copied when.

All rows end at one column, where the next token of each is written; a shorter row has padding before it. The
arrays have room for more tokens and places for more rows than there are, so that
- a step writes its tokens in place,
- a row that joins is written into a free place,
- a row that leaves has the last one moved to its place,
and nothing else is copied. mlx-lm's BatchKVCache copies the whole batch for each of the latter two. Here all
rows are copied when room or places run out, when a row joins that is longer than all others, and when much of
the arrays is unused.
"""

from __future__ import annotations

from collections.abc import Sequence

import mlx.core as mx

from scheduler.shared.row_bytes import roomy, spare_places


class PaddedRows:
    """`padding` has an entry for each row, in the order of their places. Array content behind `end`, beyond
    the last row and in the padding is meaningless, but finite in the padding."""

    def __init__(self, padding: Sequence[int], end: int = 0, coming_tokens: int = 0) -> None:
        """`coming_tokens`: the length that the rows will have soon, for which room is made once."""
        self.keys: mx.array | None = None
        self.values: mx.array | None = None
        self.padding = list(padding)
        self.end = end
        self._coming_tokens = coming_tokens

    @property
    def nbytes(self) -> int:
        return 0 if self.keys is None or self.values is None else self.keys.nbytes + self.values.nbytes

    def append(self, keys: mx.array, values: mx.array) -> tuple[mx.array, mx.array]:
        """Append (rows, heads, tokens, size) to each row. Return all keys and values."""
        start, self.end = self.end, self.end + keys.shape[2]
        if self.keys is None or self.values is None:
            self.keys, self.values = self._new(keys), self._new(values)
        elif self.end > self.keys.shape[2]:
            self.keys, self.values = self._roomier(self.keys, start), self._roomier(self.values, start)
        rows = len(self.padding)
        self.keys[:rows, :, start : self.end] = keys
        self.values[:rows, :, start : self.end] = values
        return self.whole()

    def whole(self) -> tuple[mx.array, mx.array]:
        """Return all rows' keys and values, without spare room."""
        assert self.keys is not None
        assert self.values is not None
        rows = len(self.padding)
        return self.keys[:rows, :, : self.end], self.values[:rows, :, : self.end]

    def write(self, row: int, start: int, keys: mx.array, values: mx.array) -> None:
        """Put (1, heads, tokens, size) at a row's columns from `start`, which lie before `end`."""
        if self.keys is None or self.values is None:
            self.keys, self.values = self._new(keys), self._new(values)
        self.keys[row : row + 1, :, start : start + keys.shape[2]] = keys
        self.values[row : row + 1, :, start : start + keys.shape[2]] = values

    def row(self, row: int) -> tuple[mx.array | None, mx.array | None]:
        """(1, heads, columns, size) of one row as it is now, with padding and spare room. Slices: our arrays
        are overwritten as soon as the row leaves and another takes its place."""
        if self.keys is None or self.values is None:
            return None, None
        return self.keys[row : row + 1], self.values[row : row + 1]

    def twin(self) -> PaddedRows:
        """Return a copy-on-write copy."""
        twin = PaddedRows(self.padding, self.end, self._coming_tokens)
        twin.keys = None if self.keys is None else self.keys[:]
        twin.values = None if self.values is None else self.values[:]
        return twin

    def roll(self, right_padding: list[int]) -> None:
        """Right-justify the rows again, after a chunk whose shorter rows are padded at their right ends."""
        if self.keys is not None and self.values is not None:
            by = mx.array(right_padding)[:, None, None, None]
            columns = (mx.arange(self.keys.shape[2])[None, None, :, None] - by) % self.keys.shape[2]
            rows = len(self.padding)
            self.keys = mx.take_along_axis(self.keys[:rows], columns, axis=2)
            self.values = mx.take_along_axis(self.values[:rows], columns, axis=2)
        self.padding = [own + more for own, more in zip(self.padding, right_padding, strict=True)]

    def join(self, other: PaddedRows) -> None:
        """Append all rows of the other batch."""
        rows, more = len(self.padding), len(other.padding)
        unused = min(other.padding)
        length = other.end - unused
        end = max(self.end, length)
        like = other if self.keys is None else self
        if like.keys is not None and like.values is not None:
            if self.keys is None or rows + more > self.keys.shape[0] or end > self.end:
                places = rows + more + spare_places(rows + more)
                self._rebuild(like.keys, like.values, list(range(rows)), places, 0, end)
            self.padding, self.end = [own + end - self.end for own in self.padding], end
            if other.keys is not None and other.values is not None and length:
                place = (slice(rows, rows + more), slice(None), slice(end - length, end))
                theirs = (slice(0, more), slice(None), slice(unused, other.end))
                assert self.keys is not None
                assert self.values is not None
                self.keys[place], self.values[place] = other.keys[theirs], other.values[theirs]
                # A failed row may have left NaN there, and a weight of 0 times NaN is NaN.
                before = (slice(rows, rows + more), slice(None), slice(0, end - length))
                self.keys[before], self.values[before] = 0.0, 0.0
        self.padding += [own - unused + end - length for own in other.padding]

    def select(self, order: list[int]) -> None:
        """Keep these rows, in this order. Cheap if most of them keep their places."""
        self.padding = [self.padding[row] for row in order]
        if self.keys is None or self.values is None:
            return
        least = min(self.padding)
        moved = [(place, row) for place, row in enumerate(order) if place != row]
        few = 2 * len(order) < self.keys.shape[0] - spare_places(self.keys.shape[0])
        if few or 4 * len(moved) > len(order) + 4 or self._is_much(least):
            self._rebuild(self.keys, self.values, order, len(order), least, self.end - least)
            self.padding, self.end = [own - least for own in self.padding], self.end - least
        elif moved:
            rows = mx.array([row for _, row in moved])
            keys, values = self.keys[rows, :, : self.end], self.values[rows, :, : self.end]
            # Evaluated now, so that nothing reads the arrays when the next step writes to them.
            mx.async_eval(keys, values)  # type: ignore[no-untyped-call]
            for at, (place, _) in enumerate(moved):
                self.keys[place, :, : self.end] = keys[at]
                self.values[place, :, : self.end] = values[at]

    def forget(self, tokens: Sequence[int]) -> None:
        """Drop the first tokens of each row, the number given for each."""
        self.padding = [own + more for own, more in zip(self.padding, tokens, strict=True)]
        least = min(self.padding)
        if self.keys is None or self.values is None or not self._is_much(least):
            return
        if least == self.end:
            self.keys = self.values = None
        else:
            rows = list(range(len(self.padding)))
            self._rebuild(self.keys, self.values, rows, self.keys.shape[0], least, self.end - least)
        self.padding, self.end = [own - least for own in self.padding], self.end - least

    def _is_much(self, padding: int) -> bool:
        """Padding common to all rows is removed where it is as much as the spare room."""
        return padding == self.end > 0 or padding >= roomy(self.end) - self.end

    def _rebuild(
        self, keys: mx.array, values: mx.array, order: list[int], places: int, trim: int, end: int
    ) -> None:
        """New arrays like `keys` and `values` with our rows, without their first `trim` columns."""
        self.keys, self.values = (
            self._copied(own, like, order, places, trim, end)
            for own, like in ((self.keys, keys), (self.values, values))
        )

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
