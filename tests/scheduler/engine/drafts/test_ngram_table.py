"""Where the last tokens of a text stood before: right or nothing, whatever pieces the text has grown by."""

from __future__ import annotations

from array import array
from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from scheduler.engine.drafts.ngram_table import NgramTable

_TOKENS = st.one_of(st.integers(0, 3), st.sampled_from([2**31, 2**32 - 1]))
"""Few, so that they repeat, and some that only 32 bits without a sign hold."""
_PIECES = st.lists(st.lists(_TOKENS, max_size=120), min_size=1, max_size=6)


def _latest(text: Sequence[int], run: Sequence[int]) -> int | None:
    """Return the position behind the latest place of the run in the text that something follows."""
    order = len(run)
    ends = [end for end in range(order, len(text)) if list(text[end - order : end]) == list(run)]
    return ends[-1] if ends else None


def _collides(table: NgramTable, text: array[int], order: int) -> bool:
    runs = {tuple(text[end - order : end]) for end in range(order, len(text) + 1)}
    return len({table._slot(array("I", run), order) for run in runs}) < len(runs)


@pytest.mark.parametrize("order", [3, 8])
@given(pieces=_PIECES)
def test_it_finds_the_latest_place_of_the_last_tokens(order: int, pieces: list[list[int]]) -> None:
    """At each length of a text that grows by pieces of any size. Only a collision may cost a match."""
    text = array("I")
    table = NgramTable(order, sum(map(len, pieces)))
    for piece in pieces:
        text.extend(piece)
        table.extend(text)
        if len(text) < order:
            assert table.find(text, text) is None
            continue
        expected = _latest(text, text[-order:])
        found = table.find(text, text)
        assert found == expected or (found is None and _collides(table, text, order))


@given(pieces=_PIECES, order=st.sampled_from([1, 3, 8]))
def test_python_and_numpy_enter_the_same(pieces: list[list[int]], order: int) -> None:
    """A token at a time is Python's own loop; hundreds at once are NumPy's."""
    whole = array("I", [token for piece in pieces for token in piece])
    at_once, pieced, by_one = (NgramTable(order, len(whole)) for _ in range(3))
    at_once.extend(whole)
    text = array("I")
    for piece in pieces:
        for token in piece:
            text.append(token)
            by_one.extend(text)
        pieced.extend(text)
    assert np.array_equal(at_once._ends, by_one._ends)
    assert np.array_equal(at_once._ends, pieced._ends)


@given(text=st.lists(_TOKENS, max_size=200), answer=st.lists(_TOKENS, max_size=20))
def test_another_text_is_searched_as_well(text: list[int], answer: list[int]) -> None:
    """The client's prediction: what follows there the answer's last tokens."""
    predicted, written = array("I", text), array("I", answer)
    table = NgramTable(3, len(text) + 1)
    table.extend(predicted)
    found = table.find(predicted, written)
    if len(written) < 3:
        assert found is None
        return
    expected = _latest(predicted, written[-3:])
    assert found == expected or (found is None and _collides(table, predicted + written, 3))


@pytest.mark.parametrize(("tokens", "most_bytes"), [(0, 4 << 10), (500, 4 << 10), (10_000_000, 512 << 10)])
def test_memory_is_bounded(tokens: int, most_bytes: int) -> None:
    assert memoryview(NgramTable(3, tokens)._ends).nbytes <= most_bytes
