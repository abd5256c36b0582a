"""Where the last tokens of a text stood before: right or nothing, whatever pieces the text has grown by."""

from __future__ import annotations

from array import array
from collections.abc import Sequence

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
            assert table.find(text) is None
            continue
        expected = _latest(text, text[-order:])
        found = table.find(text)
        assert found == expected or (found is None and _collides(table, text, order))


@pytest.mark.parametrize(("tokens", "most_bytes"), [(0, 4 << 10), (500, 4 << 10), (10_000_000, 512 << 10)])
def test_memory_is_bounded(tokens: int, most_bytes: int) -> None:
    assert memoryview(NgramTable(3, tokens)._ends).nbytes <= most_bytes
