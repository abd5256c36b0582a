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
"""

from __future__ import annotations

from collections.abc import Sequence

import mlx.core as mx

from scheduler.shared.row_bytes import roomy, spare_places


class PaddedRows:
    """`padding` and `lags` have an entry for each row, in the order of their places: the columns before its
    tokens, and those between its last token and `end`. Array content behind `end`, beyond the last row, in
    the padding and in a lag is meaningless, but finite in the latter two."""

    def __init__(self, padding: Sequence[int], end: int = 0, coming_tokens: int = 0) -> None:
        """`coming_tokens`: the length that the rows will have soon, for which room is made once."""
        self.keys: mx.array | None = None
        self.values: mx.array | None = None
        self.padding = list(padding)
        self.lags = [0] * len(self.padding)
        self.end = end
        self._coming_tokens = coming_tokens

    @property
    def nbytes(self) -> int:
        return 0 if self.keys is None or self.values is None else self.keys.nbytes + self.values.nbytes

    def append(
        self, keys: mx.array, values: mx.array, columns: mx.array | None = None
    ) -> tuple[mx.array, mx.array]:
        """Append (rows, heads, tokens, size) to each row. Return all keys and values. `columns`: (rows,
        tokens), where they are written if rows lag; all layers have the same."""
        start, self.end = self.end, self.end + keys.shape[2]
        if self.keys is None or self.values is None:
            self.keys, self.values = self._new(keys), self._new(values)
        elif self.end > self.keys.shape[2]:
            self.keys, self.values = self._roomier(self.keys, start), self._roomier(self.values, start)
        rows = len(self.padding)
        if columns is None:
            assert not any(self.lags), "rows that lag have columns of their own"
            self.keys[:rows, :, start : self.end] = keys
            self.values[:rows, :, start : self.end] = values
        else:
            place = mx.arange(rows)[:, None], slice(None), columns
            self.keys[place], self.values[place] = keys.swapaxes(1, 2), values.swapaxes(1, 2)
        return self.whole()

    def trim(self, tokens: Sequence[int]) -> None:
        """Take back the last tokens of each row, the number given for each."""
        self._lag([own + more for own, more in zip(self.lags, tokens, strict=True)])

    def _lag(self, lags: Sequence[int]) -> None:
        least = min(lags)
        self.lags, self.end = [own - least for own in lags], self.end - least

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
        twin.lags = list(self.lags)
        twin.keys = None if self.keys is None else self.keys[:]
        twin.values = None if self.values is None else self.values[:]
        return twin

    def justify(self) -> None:
        """Move the rows that lag to the common end. Copies the batch."""
        if self.keys is not None and self.values is not None and any(self.lags):
            by = mx.array(self.lags)[:, None, None, None]
            columns = (mx.arange(self.keys.shape[2])[None, None, :, None] - by) % self.keys.shape[2]
            rows = len(self.padding)
            self.keys = mx.take_along_axis(self.keys[:rows], columns, axis=2)
            self.values = mx.take_along_axis(self.values[:rows], columns, axis=2)
        self.padding = [own + lag for own, lag in zip(self.padding, self.lags, strict=True)]
        self.lags = [0] * len(self.padding)

    def make_room(self, tokens: int) -> None:
        """Before `tokens` are appended to each: where the batch is copied for them, no row lags afterwards,
        so that no room is made for the columns of lags."""
        if self.keys is not None and self.end + tokens > self.keys.shape[2] and any(self.lags):
            self.justify()
            self._drop_columns(min(self.padding))

    def join(self, other: PaddedRows) -> None:
        """Append all rows of the other batch, each to the common end: while rows lag, tokens are
        scattered."""
        other.justify()
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
                for unwritten in (slice(0, end - length), slice(end, None)):
                    place = (slice(rows, rows + more), slice(None), unwritten)
                    self.keys[place], self.values[place] = 0.0, 0.0
        self.padding += [own - unused + end - length for own in other.padding]
        self.lags += [0] * more

    def select(self, order: list[int]) -> None:
        """Keep these rows, in this order. Cheap if most of them keep their places."""
        self.padding = [self.padding[row] for row in order]
        self._lag([self.lags[row] for row in order])
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
            keys, values = self.keys[rows], self.values[rows]  # With what a lag will show (`join`).
            # Evaluated now, so that nothing reads the arrays when the next step writes to them.
            mx.async_eval(keys, values)  # type: ignore[no-untyped-call]
            for at, (place, _) in enumerate(moved):
                self.keys[place], self.values[place] = keys[at], values[at]

    def forget(self, tokens: Sequence[int]) -> None:
        """Drop the first tokens of each row, the number given for each."""
        self.padding = [own + more for own, more in zip(self.padding, tokens, strict=True)]
        least = min(self.padding)
        if self.keys is None or self.values is None:
            return
        if all(own + lag == self.end for own, lag in zip(self.padding, self.lags, strict=True)):
            self.keys = self.values = None
            self.padding, self.lags, self.end = [0] * len(self.padding), [0] * len(self.padding), 0
        elif self._is_much(least):
            self._drop_columns(least)

    def _drop_columns(self, first: int) -> None:
        """Drop the first columns, which are padding of all rows."""
        if first and self.keys is not None and self.values is not None:
            rows = list(range(len(self.padding)))
            self._rebuild(self.keys, self.values, rows, self.keys.shape[0], first, self.end - first)
            self.padding, self.end = [own - first for own in self.padding], self.end - first

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
