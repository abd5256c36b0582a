"""Rows of different lengths side by side keep their own content, whichever rows join and leave, and are
counted with the bytes that they take."""

from __future__ import annotations

from itertools import count

import mlx.core as mx
import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from mlx_lm.models.cache import make_prompt_cache

from scheduler.engine.mlx.kv.batch_geometry import BatchGeometry
from scheduler.engine.mlx.kv.cache_layout import row_bytes
from scheduler.engine.mlx.kv.padded_rows import PaddedRows
from scheduler.shared.row_bytes import RowBytes
from tests.contracts.journal import kv_bytes
from tests.examples import examples
from tests.scheduler.engine.mlx.families import FAMILIES
from tests.scheduler.engine.mlx.reuse import engine_of, model_of, words

_HEADS, _SIZE = 2, 3
_TOKEN_BYTES = 2 * _HEADS * _SIZE * 4


def _block(rows: list[list[int]]) -> tuple[mx.array, mx.array]:
    """A token is its number in every head and component; values are the keys' negatives."""
    numbers = mx.array(rows, dtype=mx.float32)[:, None, :, None]
    keys = mx.broadcast_to(numbers, (len(rows), _HEADS, len(rows[0]), _SIZE))
    return keys, -keys


def _contents(rows: PaddedRows) -> list[list[int]]:
    if not rows.arrays:
        assert rows.end == 0 or all(own == rows.end for own in rows.padding)
        return [[] for _ in rows.padding]
    keys, values = (np.array(array) for array in rows.arrays)
    assert np.isfinite(keys[: len(rows.padding)]).all(), "a weight of 0 times NaN is NaN"
    found = []
    for row, (padding, lag) in enumerate(zip(rows.padding, rows.lags, strict=True)):
        mine = keys[row, :, padding : rows.end - lag]
        assert np.array_equal(values[row, :, padding : rows.end - lag], -mine)
        assert np.array_equal(mine, np.broadcast_to(mine[:1, :, :1], mine.shape))
        found.append([int(number) for number in mine[0, :, 0]])
    return found


def _append(rows: PaddedRows, block: list[list[int]]) -> None:
    """As a model call does, before which rows that lag get room."""
    tokens = len(block[0])
    if not any(rows.lags):
        rows.append(_block(block))
        return
    rows.make_room(tokens)
    geometry = BatchGeometry(((),) * len(block), tuple(rows.padding), tuple(rows.lags))
    keys, values = _block(block)
    rows.append((keys, values), geometry.places(rows.end, *keys.shape[1:3]) if any(rows.lags) else None)


class _Oracle:
    """The same operations on lists."""

    def __init__(self, tokens: list[list[int]]) -> None:
        self.tokens = tokens
        self.rows = PaddedRows([0] * len(tokens))
        if tokens[0]:
            self.rows.append(_block(tokens))

    def check(self) -> None:
        assert _contents(self.rows) == self.tokens


@settings(deadline=None, max_examples=examples(60))
@given(data=st.data())
def test_rows_hold_what_was_written_to_them(data: st.DataObject) -> None:
    """Any chunks, ragged ones too, any joins, leaves and forgotten beginnings, in any order."""
    numbers = count(1)

    def fresh(rows: int, tokens: int) -> list[list[int]]:
        return [[next(numbers) for _ in range(tokens)] for _ in range(rows)]

    batch = _Oracle(fresh(data.draw(st.integers(1, 3)), data.draw(st.integers(0, 40))))
    for _ in range(data.draw(st.integers(1, 12))):
        match data.draw(st.sampled_from(["append", "ragged", "drafts", "join", "leave", "forget"])):
            case "append":
                block = fresh(len(batch.tokens), data.draw(st.sampled_from([1, 1, 1, 5, 70])))
                _append(batch.rows, block)
                batch.tokens = [own + new for own, new in zip(batch.tokens, block, strict=True)]
            case "ragged" | "drafts" as kind:
                block = fresh(len(batch.tokens), 6)
                right = [data.draw(st.integers(0, 5)) for _ in block]
                _append(batch.rows, block)
                batch.rows.trim(right)
                if kind == "ragged":
                    batch.rows.justify()
                batch.tokens = [
                    own + new[: 6 - padding]
                    for own, new, padding in zip(batch.tokens, block, right, strict=True)
                ]
            case "join":
                other = _Oracle(fresh(data.draw(st.integers(1, 3)), data.draw(st.integers(0, 60))))
                batch.rows.join(other.rows)
                batch.tokens += other.tokens
            case "leave":
                order = data.draw(st.permutations(range(len(batch.tokens))))
                order = order[: data.draw(st.integers(1, len(order)))]
                batch.rows.select(order)
                batch.tokens = [batch.tokens[row] for row in order]
            case _:
                gone = [data.draw(st.integers(0, len(own))) for own in batch.tokens]
                batch.rows.forget(gone)
                batch.tokens = [own[first:] for own, first in zip(batch.tokens, gone, strict=True)]
        batch.check()


@settings(deadline=None, max_examples=examples(60))
@given(data=st.data())
def test_arrays_are_never_larger_than_counted_before_rows_join(data: st.DataObject) -> None:
    """With room for the longest of what all rows still need, as rows join and grow up to that."""
    lengths = st.lists(st.integers(1, 300), min_size=1, max_size=5)
    first, coming = data.draw(lengths), data.draw(st.integers(1, 200))
    rows, own = PaddedRows([0] * len(first), 0, max(first) + coming), first
    rows.append(_block([[1] * max(first)] * len(first)))
    for joining in data.draw(st.lists(lengths, max_size=4)):
        other = PaddedRows([0] * len(joining), 0, max(joining) + coming)
        other.append(_block([[2] * max(joining)] * len(joining)))
        rows.join(other)
        own = own + joining
        assert rows.nbytes <= RowBytes(_TOKEN_BYTES).batch(own, coming)
    for _ in range(coming):
        rows.append(_block([[3]] * len(own)))
        assert rows.nbytes <= RowBytes(_TOKEN_BYTES).batch(own, coming)


@settings(deadline=None, max_examples=examples(40))
@given(
    rows_like=st.lists(st.tuples(st.integers(1, 300), st.sampled_from([1, 3, 16])), min_size=2, max_size=5),
    drafted=st.sampled_from([2, 8, 16]),
)
@example(rows_like=[(300, 1), (1, 16)], drafted=16)
def test_drafts_make_arrays_no_larger_than_counted(rows_like: list[tuple[int, int]], drafted: int) -> None:
    """Rows of any lengths, each of which accepts its own number of tokens in a step: there is room for the
    longest with its drafts. A short one that accepts more than others is soon beyond their columns, and where
    it would need room for that, those that lag are moved to it."""
    lengths = [length for length, _ in rows_like]
    rows, own = PaddedRows([0] * len(lengths)), list(lengths)
    rows.append(_block([[1] * max(lengths)] * len(lengths)))
    rows.trim([max(lengths) - own for own in lengths])
    rows.justify()
    for _ in range(30):
        _append(rows, [[3] * drafted] * len(own))
        assert rows.nbytes <= RowBytes(_TOKEN_BYTES).batch([own_tokens + drafted for own_tokens in own])
        kept = [min(drafted, accepted) for _, accepted in rows_like]
        rows.trim([drafted - tokens for tokens in kept])
        own = [before + tokens for before, tokens in zip(own, kept, strict=True)]
    expected = [[1] * first + [3] * (now - first) for first, now in zip(lengths, own, strict=True)]
    assert _contents(rows) == expected


@pytest.mark.parametrize("family", sorted(FAMILIES))
@pytest.mark.parametrize("tokens", [5, 40, 300])
def test_a_row_holds_what_is_counted_for_it(family: str, tokens: int) -> None:
    """In every kind of cache, short of a window and beyond it; mlx-lm rounds up to 256 tokens."""
    cache = make_prompt_cache(model := model_of(family))
    model(mx.array([[0]]), cache=cache)
    counted = row_bytes(cache)
    engine = engine_of(family, budget_bytes=0, prefill_chunk_tokens=512, max_slots=1)
    engine.iterate([engine.submit(words(tokens, 7), max_tokens=3)])
    engine.iterate()
    rounding = 256 * (counted.token_bytes + sum(window.token_bytes for window in counted.windows))
    assert counted.held(tokens) <= kv_bytes(engine.backend) <= counted.held(tokens) + rounding
